"""A course's bins as a few longer stretches, so that a plot shows a rate and not single prompts. Pure."""

from __future__ import annotations

from soak.export.course import Bin, Course


def stretches(course: Course, most: int) -> tuple[list[tuple[float, Bin]], float]:
    """(seconds from the start to the middle, what was in it) of at most ``most`` stretches, and their length.

    The course is left as it is.
    """
    last = max(course.bins, default=0)
    together = -(-(last + 1) // most)
    width_s = course.width_s * together
    joined: dict[int, Bin] = {}
    for place in sorted(course.bins):
        group = place // together
        copy = Bin.from_dict(course.bins[place].as_dict())
        if group in joined:
            joined[group].join(copy)
        else:
            joined[group] = copy
    return [((group + 0.5) * width_s, held) for group, held in joined.items()], width_s
