"""The error of this package."""

from servinglab.errors import CourseError


class RepositoryError(CourseError):
    """A repository, a template or a spec that cannot be used. The message says what, where and what to do."""
