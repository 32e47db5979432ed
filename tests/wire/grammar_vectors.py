"""Grammars with texts that they take and refuse, and grammars that are none. Written by hand, read by the tests of
``core.grammar`` and by other implementations."""

from typing import Any

Case = dict[str, Any]

JSON = r"""root ::= value
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (pair ("," ws pair)*)? "}"
pair ::= string ":" ws value
array ::= "[" ws (value ("," ws value)*)? "]"
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})?
ws ::= " "?
"""

VALID: list[tuple[str, str, list[str], list[str], list[str]]] = [
    ("a literal", 'root ::= "yes"', ["yes"], ["", "ye"], ["no", "yes!", "Yes"]),
    ("two ways", 'root ::= "yes" | "no"', ["yes", "no"], ["y", "n"], ["yesno", "x"]),
    ("the empty text", "root ::=", [""], [], ["a"]),
    ("escapes", r'root ::= "\n\r\t\\\"\[\]\x41\u00e9\U0001F600"', ['\n\r\t\\"[]Aé😀'], ["\n"], ["n"]),
    ("a class", "root ::= [a-cx-]", ["a", "b", "c", "x", "-"], [""], ["d", "w", "ab"]),
    ("all but a class", 'root ::= [^a"]', ["b", "é", "😀", "\n"], [""], ["a", '"', "bb"]),
    ("any character", "root ::= .", ["x", "\n", "世"], [""], ["xy"]),
    ("a range across the lengths of UTF-8", r"root ::= [\u0070-\U00010010]", ["p", "é", "世", "𐀐"], [""], ["o", "𐀑"]),
    ("repetitions", 'root ::= "a"* "b"+ "c"?', ["b", "aab", "abbc"], ["", "a"], ["c", "ac", "bcc"]),
    ("repetitions with bounds", 'root ::= "a"{2} "b"{1,} "c"{0,2} "d"{ 1 , 1 }', ["aabd", "aabbccd"], ["a", "aab"],
     ["abd", "aad", "aabcccd"]),
    ("no repetition at all", 'root ::= "a"{0} "b"{0,0} "c"', ["c"], [""], ["ac", "bc"]),
    ("repetitions of repetitions", 'root ::= ("a"? "b"*)*', ["", "abba", "bbb"], ["a"], ["c"]),
    ("rules over several lines",
     'root ::= (\n  one # a comment\n  | two )\n\n# more\none ::= "1"\ntwo ::=\n  "2" |\n  "3"\n',
     ["1", "2", "3"], [""], ["4", "12"]),
    ("right recursion", 'root ::= "a" root | "."', [".", "a" * 500 + "."], ["a" * 500], ["a.."]),
    ("brackets 100 deep", 'root ::= "(" root ")" | "x"', ["(" * 100 + "x" + ")" * 100], ["(" * 100], ["(x))", "()"]),
    ("brackets deeper than 128", 'root ::= "(" root ")" | "x"', [], [], ["(" * 200 + "x" + ")" * 200]),
    ("ambiguity", 'root ::= a a a\na ::= "x"*', ["", "xxxxxxxx"], [], ["y"]),
    ("JSON", JSON, ["{}", '{"a": [1, -0.5e3, true, {"ü": "\\u00e9\\n"}]}', '"世"', "[]"],
     ["{", '{"a', '{"a": [1,', "-", "1."], ["{a: 1}", "01", "[1,]", '"\n"', "nul1", "{} "]),
    ("half a character", "root ::= [é-ü]", ["é", "ü"], [""], ["e", "ý"]),
]  # fmt: skip

INVALID: list[tuple[str, str]] = [
    ("no rule", ""),
    ("no root", 'start ::= "a"'),
    ("a rule that is missing", "root ::= other"),
    ("a rule twice", 'root ::= "a"\nroot ::= "b"'),
    ("no ::=", 'root = "a"'),
    ("a literal without its end", 'root ::= "a'),
    ("a literal over two lines", 'root ::= "a\nb"'),
    ("a class without its end", "root ::= [a"),
    ("an unknown escape", r'root ::= "\d"'),
    ("a character beyond Unicode", r'root ::= "\U00110000"'),
    ("a class that runs backwards", "root ::= [z-a]"),
    ("a group without its end", 'root ::= ("a"'),
    ("an end without its group", 'root ::= "a")'),
    ("a repetition of nothing", "root ::= *"),
    ("bounds that run backwards", 'root ::= "a"{3,2}'),
    ("bounds without a number", 'root ::= "a"{}'),
    ("bounds of letters", 'root ::= "a"{x}'),
    ("10001 repetitions", 'root ::= "a"{10001}'),
    ("a hundred million repetitions", 'root ::= ("a"{10000}){10000}'),
    ("repetitions to the ninth", 'root ::= "a"' + "{100}" * 9),
    ("nine signs of repetition", 'root ::= "a"' + "?" * 9),
    ("a reference to a token", 'root ::= <[7]> "a"'),
    ("left recursion", 'root ::= root "a" | "b"'),
    ("left recursion over three rules", 'root ::= a\na ::= b "x"\nb ::= "c"? root | "y"'),
    ("a rule without an end", 'root ::= "a" root'),
    ("a class of nothing", "root ::= []"),
    ("only surrogates", r"root ::= [\uD800-\uDFFF]"),
    ("groups 65 deep", "root ::= " + "(" * 65 + '"a"' + ")" * 65),
    ("longer than 131072 bytes", "root ::= " + '"a" ' * 32_768),
    ("4097 rules", "root ::= r0\n" + "\n".join(f'r{i} ::= "a"' for i in range(4096))),
    ("a name of 257 letters", f'root ::= {"x" * 257}\n{"x" * 257} ::= "a"'),
    ("a control character", 'root ::= "a" \x00'),
]


def grammars() -> Case:
    """The document."""
    return {
        "protocol": "/skippy-stage/2",
        "valid": [
            {"name": name, "grammar": grammar, "matched": matched, "begun": begun, "refused": refused}
            for name, grammar, matched, begun, refused in VALID
        ],
        "invalid": [{"name": name, "grammar": grammar, "error": "grammar_invalid"} for name, grammar in INVALID],
    }
