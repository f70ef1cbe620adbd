"""Seeds that have found something, each with what; they are run first in every tier, for ever.

What a seed draws changes when the scenarios do. So each finding has a test of its own as well, named after its symptom.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["KEPT_SEEDS"]

KEPT_SEEDS: Final[Mapping[str, str]] = {
    "9/60590": "a KEYED effect with an overruled sender did not end any more once its key was over",
    "9/33740": "an effect was attempted without end on a store that was too slow for the lease",
    "9/325": "a drive that asked what became of an effect claimed its run anew, and was fenced by that itself",
    "1413486516/66303": "a run paused behind the approval that it paused for, and was refused ever after",
    "1413486516/122633": "a KEYED request was sent again shortly before its key ended, and came behind that",
    "1413486516/228669": "as 66303, in the first of two steps",
    "2225984029/48941": "a clock set back as a run was claimed kept it from other hosts, and nobody said until when",
}
