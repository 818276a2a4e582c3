"""The base of everything that a recipe's text becomes: the recipe's own sections and every block's Config."""

from __future__ import annotations

from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Settings(BaseModel):
    """Frozen; unknown keys, NaN and infinity refused; `true` is not a number."""

    WHAT: ClassVar[str] = "a recipe"  # what an error calls the whole that these are settings of

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, raw: Any, info: ValidationInfo) -> Any:
        if not isinstance(raw, bool) or info.field_name is None:
            return raw
        annotation = cls.model_fields[info.field_name].annotation
        kinds = {annotation, *get_args(annotation)}
        if kinds & {int, float} and bool not in kinds:
            raise ValueError(f"must be a number, but got {str(raw).lower()}")
        return raw
