// Arithmetic on text: + - * / % ^, signs, parentheses. Nothing is evaluated as a program.

const TOKEN = /\s*(?:(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)|(\*\*|[-+*/%^()×÷−·]))/iy;
const SAME = { "×": "*", "·": "*", "÷": "/", "−": "-", "**": "^" };
const MOST_DEEP = 100;

function tokensOf(text) {
  const found = [];
  TOKEN.lastIndex = 0;
  while (text.slice(TOKEN.lastIndex).trim()) {
    const at = TOKEN.lastIndex;
    const match = TOKEN.exec(text);
    if (!match) throw new Error(`cannot read ${JSON.stringify(text.slice(at).trim()[0])}; allowed are numbers, + - * / % ^ and parentheses`);
    found.push(match[1] === undefined ? (SAME[match[2]] ?? match[2]) : Number(match[1]));
  }
  return found;
}

class Reader {
  constructor(tokens) {
    this.tokens = tokens;
    this.deep = 0;
  }

  take(...signs) {
    return signs.includes(this.tokens[0]) ? this.tokens.shift() : undefined;
  }

  sum() {
    let value = this.product();
    for (let sign; (sign = this.take("+", "-")); ) value = sign === "+" ? value + this.product() : value - this.product();
    return value;
  }

  product() {
    let value = this.signed();
    for (let sign; (sign = this.take("*", "/", "%")); ) {
      const other = this.signed();
      if (sign !== "*" && other === 0) throw new Error("division by zero");
      value = sign === "*" ? value * other : sign === "/" ? value / other : value % other;
    }
    return value;
  }

  // A sign binds less than a power: -2^2 is -4; 2^-1 is a half.
  signed() {
    if (++this.deep > MOST_DEEP) throw new Error("the expression is nested too deeply");
    const sign = this.take("+", "-");
    const value = sign ? this.signed() : this.power();
    this.deep--;
    return sign === "-" ? -value : value;
  }

  power() {
    const value = this.single();
    return this.take("^") ? value ** this.signed() : value;
  }

  single() {
    if (this.take("(")) {
      const value = this.sum();
      if (!this.take(")")) throw new Error("a parenthesis is not closed");
      return value;
    }
    if (typeof this.tokens[0] === "number") return this.tokens.shift();
    throw new Error(this.tokens.length ? `a number is missing before ${this.tokens[0]}` : "the expression ends too early");
  }
}

// The value of an expression as text; throws an Error that says what is wrong with it.
export function calculate(text) {
  const reader = new Reader(tokensOf(text));
  const value = reader.sum();
  if (reader.tokens.length) throw new Error(`an operator is missing before ${reader.tokens[0]}`);
  if (!Number.isFinite(value)) throw new Error("the result is no finite number");
  return String(Number(value.toPrecision(15))); // 0.1 + 0.2 is 0.3
}
