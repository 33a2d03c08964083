"""LaTeX of formulas that docstrings and pages write as plain text: `Σ_{j∈P_i} D_ij²`.

`help()` and an editor show plain text. Sphinx typesets LaTeX.
"""

import re

# A token becomes the LaTeX of its kind. The first kind that matches wins.
_KINDS = {
    "function": r"\b(?:cos|exp|log|max|mean|min|relu|sin|softmax|softplus)(?![a-z]|_[a-z]{3})",
    "words": r"[A-Za-z](?:-?[a-z]+)+(?:_[a-z]{3,})*(?: [a-z]{3,})* ?|[A-Z]{2,}",
    "power": r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+|\*(?=_)",
    "digits": r"[₀₁₂₃₄₅₆₇₈₉₊₋]+",
    "index": r"_[A-Za-z0-9]{1,2}(?![a-z])",
    "label": r"_[a-z]{3,}",
    "set": r"(?<![_^])\{[^{}]*\}",
    "length": r"‖(?! )[^‖]*‖|\|(?! )[^|]*\|",
    "gap": r" {3,}",
    "symbol": r"[Σ−·½√ᵀ%@]",
}
_TOKEN = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()))
_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-" * 2)
_SYMBOLS = {"Σ": r"\sum ", "−": "-", "·": r"\cdot ", "½": r"\frac{1}{2}", "√": r"\surd "}
_SYMBOLS |= {"ᵀ": r"^\top ", "%": r"\% ", "@": r"\text{@}"}
SYMBOL = re.compile(r"(?<![\w.`:/])[A-Za-zα-ω][⁺⁻¹²]?_[a-z]{1,2}(?![\w`])")
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_FORMULA = re.compile(r"[α-ωΓΔΦΣ√½²³⁴⁺⁻ᵀ∈∪∩∝≤≥‖∇−·→]|\^[a-z{]|(?<!\w)[A-Za-z]\*?_[a-z]{1,2}(?!\w)")
_CODE = re.compile(r"""^\[|["'\\]|==|\w\.[a-z]|[a-z]{3,}_[a-z]{3,}\(""")


def is_formula(code: str) -> bool:
    """Return whether code is a formula, and not Python or a name."""
    return bool(_FORMULA.search(code)) and not _CODE.search(code)


def latex(formula: str) -> str:
    """Return the LaTeX of a formula in plain text."""
    return _TOKEN.sub(_latex_of_token, formula).strip()


def with_formulas(text: str, form: str) -> str:
    """Replace code spans that are formulas by `form` with their LaTeX.

    Args:
        text: Markdown without blocks of code.
        form: A format such as `"${}$"`.
    """

    def replaced(span):
        code = " ".join(span[1].split())
        return form.format(latex(code)) if is_formula(code) else span[0]

    return _SPAN.sub(replaced, text)


def _latex_of_token(match) -> str:
    kind, token = match.lastgroup, match[0]
    if kind == "function":
        return rf"\operatorname{{{token}}}"
    if kind == "words":
        return rf"\text{{{token}}}"
    if kind == "power":
        return f"^{{{token.translate(_DIGITS)}}}"
    if kind == "digits":
        return f"_{{{token.translate(_DIGITS)}}}"
    if kind == "index":
        return f"_{{{token[1:]}}}"
    if kind == "label":
        return rf"_\text{{{token[1:]}}}"
    if kind == "set":
        return rf"\lbrace {latex(token[1:-1])} \rbrace "
    if kind == "length":
        return rf"\left{token[0]} {latex(token[1:-1])} \right{token[0]} "
    return r" \quad " if kind == "gap" else _SYMBOLS[token]
