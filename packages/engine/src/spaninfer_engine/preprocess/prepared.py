"""One image, video or clip, ready for its tower and for its place in the prompt."""

from __future__ import annotations

from dataclasses import dataclass

from spaninfer_multimodal import Mel, Patches, Tiles

from spaninfer_engine.request.media import Levels, MediaKind, Mixture, TowerInput


@dataclass(frozen=True, eq=False, slots=True)
class PreparedMedia:
    """A tower's input, and the times of a video: between two rows of its grid, and of each.

    `around` are the texts in front of, between and behind the runs that its tokens are cut into;
    empty where they stand together.
    """

    input: TowerInput
    seconds_per_grid: float | None = None
    times_s: tuple[float, ...] = ()
    around: tuple[str, ...] = ()


def prepared(kind: MediaKind, features: Patches | Tiles | Mel) -> PreparedMedia:
    """Return what a processor made of one medium."""
    num_tokens, digest = features.num_tokens, features.digest
    match features:
        case Patches():
            levels = Levels(features.normalisation.levels(), features.repeats)
            made = TowerInput(
                kind, features.codes, num_tokens, digest, features.grid_thw, levels=levels
            )
            return PreparedMedia(made, features.seconds_per_grid, features.times_s, features.around)
        case Tiles():
            mixture = None if features.mixture is None else Mixture(*features.mixture)
            made = TowerInput(kind, features.pixels, num_tokens, digest, mixture=mixture)
            return PreparedMedia(made, around=features.around)
        case Mel():
            made = TowerInput(
                kind, features.features, num_tokens, digest, num_valid=features.num_valid
            )
            return PreparedMedia(made)
