// Whether a text is JSON, or may still become it.

// Ends that make a whole of a beginning, before brackets are closed.
const ENDS = ["", '"', '":0', ":0", "0", '"":0', '"0"', "rue", "ue", "e", "alse", "lse", "se", "ull", "ll", "l",
  ...["0000", "000", "00"].flatMap((digits) => [`${digits}"`, `${digits}":0`]), '0"', '0":0', '\\"', '\\":0', ".0"];

function parses(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

// What brackets are open where the text ends.
function closers(text) {
  const open = [];
  let quoted = false;
  for (let at = 0; at < text.length; at++) {
    const letter = text[at];
    if (quoted) {
      if (letter === "\\") at++;
      else if (letter === '"') quoted = false;
    } else if (letter === '"') quoted = true;
    else if (letter === "{") open.unshift("}");
    else if (letter === "[") open.unshift("]");
    else if (letter === "}" || letter === "]") open.shift();
  }
  return open.join("");
}

// "valid": a whole JSON text; "begun": the beginning of one; "broken": neither.
export function jsonState(text) {
  if (parses(text)) return "valid";
  const rest = closers(text);
  return text.trim() === "" || ENDS.some((end) => parses(text + end + rest)) ? "begun" : "broken";
}
