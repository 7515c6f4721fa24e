"""Sections of a config: pydantic models that know every key they allow, and sections chosen by name from a registry."""

from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, create_model
from pydantic_core import PydanticCustomError, core_schema

from calmrl._support import arguments
from calmrl._support.registry import REQUIRED, Registry, Signature

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
        return _from_signature(cls, name, cls.registry.signature(name))

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


@lru_cache(maxsize=256)
def _from_signature(chooser: type[ChosenSection], name: str, signature: Signature) -> type[Section]:
    fields: dict[str, Any] = {chooser.tag: (Literal[name], ...)}
    defaults = chooser.defaults.get(name, {})
    for parameter, (annotation, default) in signature.parameters.items():
        if parameter not in chooser.leave_out:
            default = defaults.get(parameter, default)
            fields[parameter] = (annotation, ... if default is REQUIRED else default)
    title = "".join(part.capitalize() for part in name.split("_"))
    model = create_model(f"{title}{chooser.__name__}", __base__=chooser, __doc__=signature.doc, **fields)
    model.model_rebuild(_types_namespace=NAMES)  # annotations that were read from source are texts
    return model
