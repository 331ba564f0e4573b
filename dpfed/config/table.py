"""What all tables of a configuration have in common: an unknown key is an error, a wrong type as well."""

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """A table; the text under a key is what the configuration reference says of it."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True)
