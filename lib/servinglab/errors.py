"""The one base class of every error a learner may meet."""


class CourseError(Exception):
    """An expected failure. Its message is one clear sentence: what went wrong, where, and what to do."""
