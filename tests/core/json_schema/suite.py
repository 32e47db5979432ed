"""JSON Schemas of the kinds that people write: the suite that every answer must satisfy."""

from typing import Any

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value", "children"],
            "additionalProperties": False,
        }
    },
}


def obj(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


SCHEMAS: dict[str, Any] = {
    "anything": {},
    "any object": {"type": "object"},
    "any array": {"type": "array"},
    "a string": {"type": "string"},
    "a number": {"type": "number"},
    "an integer": {"type": "integer"},
    "a boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "a person": PERSON,
    "optional properties": obj([], a={"type": "integer"}, b={"type": "boolean"}, c={"type": "null"}),
    "required in the middle": obj(["b"], a={"type": "integer"}, b={"type": "boolean"}, c={"type": "null"}),
    "at least one of some": {**obj([], a={"type": "integer"}, b={"type": "boolean"}), "minProperties": 1},
    "nested objects": obj(user=PERSON, address=obj(street={"type": "string"}, number={"type": "integer"})),
    "a list of objects": obj(people={"type": "array", "items": PERSON, "minItems": 1, "maxItems": 3}),
    "an enum": {"enum": ["red", "green", "blue"]},
    "an enum of all types": {"enum": [1, "one", None, True, 1.5, ["a"], {"b": [2]}]},
    "an enum with a type": {"type": "string", "enum": ["a", "b", 3]},
    "a constant": obj(kind={"const": "event"}, version={"const": 2}),
    "odd names": obj(**{'a "quoted" name': {"type": "integer"}, "ü\n世": {"type": "boolean"}, "": {"type": "null"}}),
    "short strings": obj(code={"type": "string", "minLength": 2, "maxLength": 5}),
    "a long string": {"type": "string", "minLength": 30, "maxLength": 40},
    "a pattern": obj(plate={"type": "string", "pattern": "^[A-Z]{1,3}-[0-9]{1,4}$"}),
    "a pattern with ways": {"type": "string", "pattern": r"^(cat|dog)s?$|^\d{3}$"},
    "a pattern that is found within": {"type": "string", "pattern": "b[aeiou]d"},
    "a pattern of escapes": {"type": "string", "pattern": r"^\w+\s\"\\\.[^a-z\"]$"},
    "a date": obj(day={"type": "string", "format": "date"}, at={"type": "string", "format": "date-time"}),
    "ids": obj(id={"type": "string", "format": "uuid"}, mail={"type": "string", "format": "email"}),
    "addresses": obj(v4={"type": "string", "format": "ipv4"}, v6={"type": "string", "format": "ipv6"},
                     host={"type": "string", "format": "hostname"}, link={"type": "string", "format": "uri"}),
    "a percentage": {"type": "integer", "minimum": 0, "maximum": 100},
    "an odd range": {"type": "integer", "minimum": -17, "maximum": 3042},
    "a lower bound": {"type": "integer", "minimum": 257},
    "an upper bound": {"type": "integer", "exclusiveMaximum": -4},
    "a probability": obj(p={"type": "number", "minimum": 0, "maximum": 1}),
    "open ends": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5},
    "a range of decimals": {"type": "number", "minimum": -2.75, "maximum": 10.125},
    "a price": obj(price={"type": "number", "minimum": 0}),
    "a multiple": {"type": "integer", "multipleOf": 7},
    "a list of numbers": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 4},
    "an empty list": {"type": "array", "maxItems": 0},
    "one item at most": {"type": "array", "items": {"type": "boolean"}, "maxItems": 1, "uniqueItems": True},
    "a tuple": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
    "a tuple with a rest": {"type": "array", "prefixItems": [{"const": "x"}], "items": {"type": "integer"},
                            "minItems": 3},
    "a matrix": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
                 "maxItems": 3},
    "several types": {"type": ["string", "null", "integer"]},
    "any of": {"anyOf": [{"type": "string", "maxLength": 8}, {"type": "integer"}, {"type": "null"}]},
    "any of, with what all share": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "one of, told by a constant": {
        "oneOf": [
            obj(kind={"const": "circle"}, radius={"type": "number", "minimum": 0}),
            obj(kind={"const": "square"}, side={"type": "number", "minimum": 0}),
        ]
    },
    "one of, told by type": {
        "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": 2}]
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 9}, "b": {"type": "boolean"}}, "required": ["b"]},
        ]
    },
    "a reference": {"$defs": {"p": PERSON}, "type": "array", "items": {"$ref": "#/$defs/p"}, "maxItems": 2},
    "a reference with more beside it": {"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n", "minimum": 5},
    "a tree": TREE,
    "a linked list": obj(["value"], value={"type": "integer"}, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
    "a map": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3},
    "a map that is not empty": {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
    "an object without properties": {"type": "object", "additionalProperties": False},
    "required without a schema": {"type": "object", "required": ["x", "y"]},
    "annotations": {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T", "description": "d",
                    "type": "boolean", "default": True, "examples": [False], "deprecated": False},
    "many properties": obj([f"p{i}" for i in range(0, 20, 3)], **{f"p{i}": {"type": "boolean"} for i in range(20)}),
    "a weather report": obj(
        city={"type": "string", "maxLength": 20},
        temperature_c={"type": "number", "minimum": -90, "maximum": 60},
        sky={"enum": ["clear", "cloudy", "rain", "snow"]},
        wind={"anyOf": [obj(speed={"type": "integer", "minimum": 0, "maximum": 200},
                            from_={"enum": ["N", "E", "S", "W"]}), {"type": "null"}]},
        hours={"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 23}, "minItems": 1,
               "maxItems": 4},
    ),
}  # fmt: skip
