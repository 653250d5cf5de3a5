"""Many requests as asyncio tasks; leaving one stops it."""

import asyncio

from spaninfer import AsyncEngine, Engine, SamplingParams

SHORT = SamplingParams(max_tokens=16)


async def tell(engine: AsyncEngine, animal: str) -> str:
    """Return the beginning of a story."""
    prompt = f"Once upon a time there was a {animal}"
    return prompt + "".join([output.text async for output in engine.generate(prompt, SHORT)])


async def main() -> None:
    """Tell three stories at once, and leave a fourth."""
    async with AsyncEngine(Engine("demo")) as engine:
        for story in await asyncio.gather(*(tell(engine, name) for name in ("fox", "crow", "hen"))):
            print(story)

        async for output in engine.generate("And then", SamplingParams(max_tokens=2000)):
            print(output.text)
            break  # the request is stopped, its spans are free again


asyncio.run(main())
