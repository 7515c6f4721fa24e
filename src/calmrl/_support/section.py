"""Sections of a config: pydantic models that know every key they allow, and sections chosen by name from a registry."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, create_model
from pydantic_core import PydanticCustomError, core_schema

from calmrl._support import signatures as arguments
from calmrl._support.registry import Registry
from calmrl._support.signatures import REQUIRED, Signature

NAMES = {name: value for name, value in vars(arguments).items() if not name.startswith("_")}
NAMES |= {"Literal": Literal, "Annotated": Annotated, "Any": Any}


class Section(BaseModel):
    """What all sections share: unknown keys are forbidden, types are strict (no text where a number belongs)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    def __hash__(self) -> int:  # pydantic's own fails on lists and dicts
        return hash(self.model_dump_json())


class ChosenSection(Section):
    """A section whose key `tag` names an entry of `registry`; its other keys are the parameters of that entry.

    A subclass sets the class variables. The entries are looked up when a config is read, so that whatever is registered
    by then can be named.
    """

    registry: ClassVar[Registry[Any]]
    tag: ClassVar[str]
    leave_out: ClassVar[frozenset[str]] = frozenset()  # parameters that are not for configs
    defaults: ClassVar[dict[str, dict[str, Any]]] = {}  # where a config starts from another value than the constructor

    @classmethod
    def member(cls, name: str) -> type[Section]:
        """The section of one entry."""
        overridden, signature = tuple(cls.defaults.get(name, {}).items()), cls.registry.signature(name)
        return _from_signature(cls, name, _Key(signature, repr(signature.parameters)), overridden)

    @classmethod
    def members(cls) -> list[type[Section]]:
        """The sections of all entries."""
        return [cls.member(name) for name in cls.registry]

    @classmethod
    def choose(cls, value: Any) -> Any:
        """A checked section from what a config holds."""
        if isinstance(value, Section):
            return value
        if not isinstance(value, dict):
            raise PydanticCustomError("dict_type", "Input should be a section of keys")
        if cls.tag not in value:
            raise PydanticCustomError("union_tag_not_found", "no {discriminator}", {"discriminator": cls.tag})
        name, names = value[cls.tag], ", ".join(f"'{name}'" for name in cls.registry)
        if name not in cls.registry:
            context = {"discriminator": cls.tag, "tag": str(name), "expected_tags": names}
            raise PydanticCustomError("union_tag_invalid", "no such {discriminator}", context)
        return cls.member(name).model_validate(value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        if "registry" not in cls.__dict__:  # a member
            return handler(source)
        return core_schema.no_info_plain_validator_function(
            cls.choose,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda section, info: section.model_dump(mode=info.mode), info_arg=True
            ),
        )


@dataclass(frozen=True)
class _Key:
    """A signature that can be the key of a cache: its text tells it from others."""

    signature: Signature = field(compare=False)
    text: str


@lru_cache(maxsize=256)
def _from_signature(
    chooser: type[ChosenSection], name: str, key: _Key, overridden: tuple[tuple[str, Any], ...]
) -> type[Section]:
    fields: dict[str, Any] = {chooser.tag: (Literal[name], ...)}
    for parameter, (annotation, default) in key.signature.parameters.items():
        if parameter not in chooser.leave_out:
            default = dict(overridden).get(parameter, default)
            fields[parameter] = (annotation, ... if default is REQUIRED else default)
    title = "".join(part.capitalize() for part in name.split("_"))
    model = create_model(f"{title}{chooser.__name__}", __base__=chooser, __doc__=key.signature.doc, **fields)
    model.model_rebuild(_types_namespace=NAMES)  # annotations that were read from source are texts
    return model
