"""What is known of the ONNX standard is what the schemas of the `onnx` package say."""

from __future__ import annotations

import onnx
import pytest
from onnx import defs
from onnx_standard import body_of, schemas, table

from smalti.frontend.onnx.registry import HOST_RULES, rule_for
from smalti.frontend.onnx.standard import TABLE, newest, operator_in

AGAIN = "run python tests/material/onnx_standard.py"


def test_the_table_is_that_of_the_onnx_package() -> None:
    assert TABLE.read_text(encoding="utf-8") == table(), AGAIN
    assert newest() == defs.onnx_opset_version()


@pytest.mark.parametrize("domain", sorted({schema.domain for schema in schemas()}))
def test_each_version_of_each_operator_is_found(domain: str) -> None:
    names = {schema.name for schema in schemas() if schema.domain == domain}
    for name in names:
        for version in range(0, newest() + 2):
            found = operator_in(domain, name, version)
            assert (found is not None) == defs.has(name, version, domain), (name, version)
            if found is None:
                continue
            schema = defs.get_schema(name, version, domain)
            assert found.since == schema.since_version
            assert len(found.operands) == len(schema.inputs)
            expected = {key: entry.default_value for key, entry in schema.attributes.items()
                        if entry.default_value.type}
            assert {key: entry.SerializeToString() for key, entry in found.defaults.items()} == \
                {key: entry.SerializeToString() for key, entry in expected.items()}, (name, version)
            assert (found.body is not None) == schema.has_function
            if schema.has_function:
                text = onnx.FunctionProto.FromString(found.body.SerializeToString())
                assert [n.op_type for n in text.node] == \
                    [n.op_type for n in schema.function_body.node]
                assert found.body_text == body_of(schema)


def test_an_operator_that_is_none_is_not_found() -> None:
    assert operator_in("", "Nothing", 20) is None
    assert operator_in("mine", "Add", 20) is None
    assert operator_in("", "Gelu", 19) is None


def test_operators_whose_body_depends_on_their_operands_have_rules() -> None:
    """The table has no such body: `onnx` makes it when it is called."""
    without = [(schema.name, schema.since_version) for schema in schemas()
               if schema.has_context_dependent_function and not schema.has_function
               and rule_for(schema.domain, schema.name, schema.since_version) is None
               and (schema.domain, schema.name) not in HOST_RULES]
    assert not without
