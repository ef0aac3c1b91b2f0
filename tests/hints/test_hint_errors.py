"""What a hint that cannot be read says, whole messages with their carets."""

from collections.abc import Callable
from textwrap import dedent
from typing import NamedTuple, TypedDict

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from lines import unplaced

import typedshmap
from typedshmap import (
    AnnotationSyntaxError,
    Array,
    Float,
    Int,
    MeshAxisError,
    PyTree,
    Shaped,
    partition_specs,
    typed_shard_map,
)

X = Float[Array, "[b/dp] d"]

# Of each kind one message in full; every problem, with its place and its cure, is in notation/test_parser.py.


def message_of(dtype, item, error):
    with pytest.raises(error) as caught:
        dtype[item]
    return unplaced(caught.value)


@pytest.mark.parametrize(
    ("dtype", "item", "message"),
    [
        (
            Shaped,
            (Float[np.ndarray, "c"], "a/dp"),
            """
            Shaped[Float[np.ndarray, "c"], "a/dp"]: 'a/dp' is sharded without brackets

                Shaped[Float[np.ndarray, "c"], "a/dp"]
                                                ^^^^

            Hint: write [a/dp]
            """,
        ),
        (
            Float,
            (Float[Array, "... c"], "*n"),
            """
            Float[Array, "*n ... c"]: '*n' and '...' both stand for any number of dims

                Float[Array, "*n ... c"]
                                 ^^^

            Hint: keep one of them
            """,
        ),
    ],
)
def test_carets_stand_under_the_dims_of_any_hint(dtype, item, message):
    assert message_of(dtype, item, AnnotationSyntaxError) == dedent(message).strip()


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((3, "b"), 'Float[3, "b"]: 3 is not an array type, as Array, np.ndarray and ArrayLike are'),
        (("Array", "b"),
         "Float['Array', \"b\"]: 'Array' is not an array type, as Array, np.ndarray and ArrayLike are\n\n"
         "Hint: write the type itself, as in Float[Array, ...]"),
        ((str, "b"), 'Float[str, "b"]: str is not an array type, as Array, np.ndarray and ArrayLike are'),
        ((None | type(None), "b"),
         'Float[NoneType, "b"]: None is not an array type, as Array, np.ndarray and ArrayLike are'),
        ((int, ""), 'Float[int, ""]: a Python int is not Float'),
        ((int | bool, ""), 'Float[int | bool, ""]: a Python int | bool is not Float'),
        ((float, "... n"), 'Float[float, "... n"]: a Python float has no dims\n\n'
         '    Float[float, "... n"]\n                      ^\n\nHint: write "" or "..."'),
        ((list[int], "b"), 'Float[list, "b"]: list[int] is not an array type, as Array, np.ndarray and ArrayLike are'),
        ((Int[Array, "c"], "b"), 'Float[Int[Array, "c"], "b"]: no dtype is both Float and Int'),
    ],
    ids=str,
)  # fmt: skip
def test_something_else_than_an_array_type_is_an_error(item, message):
    assert message_of(Float, item, AnnotationSyntaxError) == message


@pytest.mark.parametrize(
    ("item", "written"),
    [((), "Float[]"), ((Array, 3), "Float[Array, 3]"), ((Array, ("b", "d")), "Float[Array, ('b', 'd')]")],
)
def test_brackets_without_an_array_type_and_dims_are_an_error(item, written):
    message = message_of(Float, item, AnnotationSyntaxError)
    assert message == f'{written}: expects an array type and dims, as in Float[Array, "b d"]'


@pytest.mark.parametrize("name", ["Float", "Shaped", "Key"])
@pytest.mark.parametrize("arguments", [("b d",), (), (Array, "b d")], ids=str)
def test_a_dtype_name_that_is_called_says_to_write_brackets(name, arguments):
    with pytest.raises(AnnotationSyntaxError) as caught:
        getattr(typedshmap, name)(*arguments)
    assert unplaced(caught.value) == f'{name}(...): a hint is written in square brackets, as in {name}[Array, "b d"]'


STRUCTURE = 'write a name, as in "S", names of structures inside of each other, "S T", or "S ..." or "... S"'


@pytest.mark.parametrize(
    ("structure", "problem"),
    [
        ("", '"]: the structure has no name\n\n    PyTree[..., ""]'),
        ("S, T", '"]: \'S,\' is not the name of a structure\n\n    PyTree[..., "S, T"]\n                 ^^'),
        ("S ?T", '"]: \'?T\' is not the name of a structure\n\n    PyTree[..., "S ?T"]\n                   ^^'),
        ("S ... T", '"]: \'...\' is not the name of a structure\n\n    PyTree[..., "S ... T"]\n                   ^^^'),
        (
            "... S ...",
            '"]: \'...\' is not the name of a structure\n\n    PyTree[..., "... S ..."]\n' + 23 * " " + "^^^",
        ),
    ],
)
def test_what_does_not_name_a_structure_is_an_error(structure, problem):
    with pytest.raises(AnnotationSyntaxError) as caught:
        PyTree[Float[Array, "a"], structure]
    assert unplaced(caught.value) == f'PyTree[..., "{structure}{problem}\n\nHint: {STRUCTURE}'


def test_a_structure_is_a_string():
    with pytest.raises(AnnotationSyntaxError) as caught:
        PyTree[Float[Array, "a"], 3]
    assert unplaced(caught.value) == f"PyTree[..., 3]: the structure is a string\n\nHint: {STRUCTURE}"


def test_an_annotation_error_is_a_value_error_of_this_library():
    assert issubclass(AnnotationSyntaxError, (ValueError, typedshmap.TypedShmapError))
    assert issubclass(MeshAxisError, (ValueError, typedshmap.TypedShmapError))


BUILTINS = {
    "a parameter": (lambda: typedshmap.typed(annotated(callable)), "f: parameter 'act': "),
    "an item": (lambda: typedshmap.typed(annotated(list[callable])), "f: parameter 'act': "),
    "a field": (lambda: typedshmap.typed(annotated(Block)), "f: parameter 'act': field 'act' of Block: "),
    "a field of a field": (lambda: typedshmap.check(None, Around), "field 'block' of Around: field 'act' of Block: "),
}


class Block(NamedTuple):
    act: callable  # type: ignore[valid-type]
    x: Float[Array, "b"]


class Around(NamedTuple):
    block: Block


def annotated(hint: object) -> Callable[..., None]:
    def f(act: object) -> None: ...

    f.__annotations__ = {"act": hint, "return": None}
    return f


@pytest.mark.parametrize(("call", "where"), BUILTINS.values(), ids=BUILTINS)
def test_a_builtin_function_is_told_from_the_type_that_is_meant(call: Callable[[], object], where: str) -> None:
    with pytest.raises(AnnotationSyntaxError) as caught:
        call()
    text = f"{where}<built-in function callable> is not a hint\n\nHint: write Callable, of collections.abc"
    assert unplaced(caught.value) == text
    with pytest.raises(AnnotationSyntaxError, match="write Any, of typing"):
        typedshmap.typed(annotated(any))


@pytest.mark.parametrize(
    ("hint", "sentence"),
    [
        ({"x": X}, 'a dict is not a hint; write a TypedDict, as in TypedDict("Batch", {...})'),
        (tuple[{"x": X}, X], 'a dict is not a hint; write a TypedDict, as in TypedDict("Batch", {...})'),
        ((X, X), "a tuple is not a hint; write tuple[...] with its items"),
        ([X], "a list is not a hint; write list[...] of one hint, or tuple[...] with several"),
    ],
)
def test_an_annotation_that_is_a_container_of_hints_names_what_to_write(hint: object, sentence: str) -> None:
    with pytest.raises(AnnotationSyntaxError) as caught:
        typed_shard_map(annotated(hint), in_specs=P())
    assert unplaced(caught.value).partition("\n")[0] == f"f: parameter 'act': {sentence}"


def test_the_type_that_is_named_for_a_dict_is_read() -> None:
    assert partition_specs(tuple[TypedDict("Batch", {"x": X}), X]) == ({"x": P("dp", None)}, P("dp", None))
