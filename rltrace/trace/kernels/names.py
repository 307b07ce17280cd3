"""Names of GPU kernels, shortened to show, and several beside each other such that different ones look different.

A name that is not understood is left as it is.
"""

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import accumulate
from zlib import crc32

# --- short names ------------------------------------------------------------------------------------------------------


MAX_SHORT = 60
"""Characters of a short name."""

_TAIL = 22
"""Characters of its end that a name keeps where it is cut: Inductor's number, the type."""

_BOILERPLATE = frozenset(
    """
    at native std array detail char unsigned signed void const c10 cuda lambda operator decltype nullptr nullptr_t
    anonymous namespace unnamed TensorIteratorBase TensorIterator TensorBase Tensor Array ArrayRef Scalar
    gpu_kernel_impl gpu_kernel_impl_nocast BinaryFunctor OffsetCalculator TrivialOffsetCalculator LoadWithoutCast
    StoreWithoutCast func_wrapper_t func_wrapper ReduceOp true false size_t CUDAGeneratorImpl PhiloxCudaState
    NullType ScanTileState ReduceByKeyScanTileState TensorInfo TensorListMetadata TensorListScalarListMetadata
    FusedOptimizerTensorListMetadata _cuda_scatter_gather_internal_kernel cublasGemvTensorStridedBatched
    cublasGemvTensorBatched cublasGemvTensor cudnnKernelDataType_t ADAM_MODE tuple Sm70 Sm75 Sm80 Sm89 Sm90 Sm100
    MatrixShape GemmShape sequence Tuple integral_constant _GLOBAL__N_1
    """.split()  # noqa: SIM905  a dozen lines are not clearer
)
"""Words in template brackets that do not describe the computation."""

_MACHINERY = re.compile(
    r"\w*(?:Polic(?:y|ies)\w*|Algorithm|Params\w*|[Tt]raits\w*|Problem|Scaling|_config\w*|config_selector|Generic2dBlockShape)"
    r"|enable_\w+|CUB_\d+\w*|THRUST_\d+\w*|ROCPRIM_\d+_NS|_V_\d+(?:_SM_\w+)?|target_arch"
)
"""Words for how a kernel is tuned or wrapped, and namespaces with a version."""

_FLOATS = {
    "float": "float",
    "double": "double",
    "Half": "half",
    "__half": "half",
    "half_t": "half",
    "DF16_": "half",
    "BFloat16": "bfloat16",
    "bfloat16_t": "bfloat16",
    "nv_bfloat16": "bfloat16",
    "__nv_bfloat16": "bfloat16",
    "__hip_bfloat16": "bfloat16",
    "DF16b": "bfloat16",
}
_TYPE_NAMES = {**_FLOATS, **{kind: kind.removesuffix("_t") for kind in ("long", "int", "short", "bool", "uint8_t")}}
_SCALAR = {"AUnaryFunctor": "AUnary", "BUnaryFunctor": "BUnary"}
"""Of ATen's binary functions with a number as first, or as second operand."""

_SORTS = re.compile(r"Device\w*Sort")

_WRAPPERS = frozenset({"Kernel", "Kernel2", "device_kernel", "kentry", "trampoline_kernel"})
"""Functions that only call the class, or the algorithm, among their template arguments."""


def _shortened(full: str) -> str:
    """A short name such as ``vectorized_elementwise_kernel<4 CUDAFunctor_add float>``, not cut."""
    plain = full.strip().replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    if plain.startswith("Cijk_"):
        return _short_tensile(plain)
    if plain.startswith("_Z"):
        base, tokens = _mangled_tokens(plain)
        literals = [token for token in tokens if token.isdigit()]
        first = literals.pop(0) if literals and tokens[0] == literals[0] else ""
        return _templated(base, [token for token in tokens if not token.isdigit()], first, literals)
    name = _function(plain)
    if "<" not in name:
        return plain if " " in name else name.rpartition("::")[2] or name
    head, _, inside = name.partition("<")
    inside = inside[: _closing(inside)]
    base = head.rpartition("::")[2]
    if base == "kernel":  # distinct only with its namespace
        base = "::".join(head.split("::")[-2:])
    procedural = re.match(r"cutlass\w+(?!\w|::)", inside)
    if procedural is not None:  # the one argument is the name
        return procedural[0]
    first, *literals = _literals(inside) or [""]
    if not re.match(r"\s*(?:\(\w+\)|\w+=)?\d", inside):
        first, literals = "", [*filter(None, [first]), *literals]
    return _templated(base, _words(inside), first, literals)


def _templated(base: str, arguments: Sequence[str], first: str, literals: Sequence[str]) -> str:
    """The first number, up to two words that name the computation, and the type; without words, all numbers."""
    own = [word for word in dict.fromkeys(arguments) if word not in _BOILERPLATE and not _MACHINERY.fullmatch(word)]
    words = [_SCALAR.get(word, word) for word in own]
    named = [word for word in words if word not in _TYPE_NAMES]
    kinds = list(dict.fromkeys(_TYPE_NAMES[word] for word in words if word in _TYPE_NAMES))
    if _SORTS.match(base):  # of keys and values
        kinds = kinds[:2]
    else:  # integers are often those of an index
        kinds = ([kind for kind in kinds if kind in _FLOATS.values()] or kinds)[:1]
    is_wrapper = base in _WRAPPERS and bool(named)
    if is_wrapper:
        base, named, first = named[0], named[1:2], ""
    shown = [*([first] if first else []), *named[:2], *kinds, *([] if named or is_wrapper else literals)]
    return f"{base}<{' '.join(shown)}>" if shown else base


def _words(inside: str) -> list[str]:
    """Identifiers in template brackets, without namespaces, enumerations, pointers to bytes and unsigned sizes."""
    plain = re.sub(r"(\w)\([^()]*\)::", r"\1 ", inside)  # of a function with a lambda in it: its arguments
    plain = re.sub(r"\((?:\w+::)*\w+\)-?\d+|\bunsigned (?:int|long)\b|\bchar(?: const)?\*", " ", plain)
    return re.findall(r"(?<!\w)([A-Za-z_]\w+)(?!\w|::)", plain.replace("unsigned char", "uint8_t"))


def _literals(inside: str) -> list[str]:
    """The numbers among the outermost template arguments; 1 of ``true``."""
    flat = inside
    while (inner := re.sub(r"<[^<>]*>", "", flat)) != flat:
        flat = inner
    found = re.findall(
        r"(?:^|,)\s*(?:\((?:int|long|bool|unsigned int)\)|\w+=)?(\d+(?=[ul]*\s*(?:,|$))|true|false)", flat
    )
    return [{"true": "1", "false": "0"}.get(value, value) for value in found]


_MANGLED = re.compile(
    r"S[0-9A-Z]*_|T\d*_|A\d+_|Dv\d+_|Ul[^E]*E\d*_"
    r"|(?P<type>DF16b|DF16_)"
    r"|L[a-z](?P<number>\d+)E|E(?P<enumerator>\d+)(?=E)"
    r"|L?(?P<length>\d+)"
)
"""What has digits in a mangled name: substitutions, types, values, and the length of an identifier before it."""


def _mangled_tokens(mangled: str) -> tuple[str, list[str]]:
    """The function in a name that cannot be demangled, and identifiers and numbers among its template arguments.

    libstdc++ cannot demangle some of nvcc's lambdas, deep names (CUTLASS), and the type of bfloat16 in clang's names.
    """
    base, tokens, at, is_inside = "", list[str](), 2, False
    while at < len(mangled):
        found = _MANGLED.match(mangled, at)
        if found is None:
            is_inside = bool(base)
            at += 1
            continue
        at = found.end()
        if value := found["type"] or found["number"] or found["enumerator"]:
            tokens.append(value)
        elif found["length"]:
            word = mangled[at : at + int(found["length"])]
            if not word.isidentifier():
                break
            at += len(word)
            if not is_inside:
                base = word
            elif re.match(r"L?\d", mangled[at:]) is None:  # no namespace
                tokens.append(word)
    return base or mangled, tokens


def _function(name: str) -> str:
    """The name without return type and argument types; unchanged where it is not a C++ function."""
    depth, nested, start = 0, 0, 0
    for at, letter in enumerate(name):
        if letter in "()" and depth:  # within template brackets: a comparison, or the arguments of a function
            nested += 1 if letter == "(" else -1
        elif nested:
            continue
        elif letter == "<":
            depth += 1
        elif letter == ">":
            depth -= 1
        elif depth == 0 and letter == "(":
            return name[:at] if name[:at].rstrip() != name[:at] else name[start:at]
        elif depth == 0 and letter == " " and re.search(r"^(?:void|static)$|>(?:::type)?$", name[start:at]):
            start = at + 1
    return name[start:]


def _closing(text: str) -> int | None:
    """Where the template bracket before ``text`` is closed; None: nowhere. What is in parentheses does not count."""
    while (inner := re.sub(r"\([^()]*\)", lambda found: " " * len(found[0]), text)) != text:
        text = inner
    depth = 1
    for at, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if depth == 0:
            return at
    return None


def _short_tensile(full: str) -> str:
    """``Tensile gfx942 BBS MT16x32x512 MI16x16 SK``: what distinguishes solutions comes late in their names."""
    found = re.search(r"_ISA([1-9]\w*?)_|_(gfx\w+)$", f"{full}_")
    instruction_set = "" if found is None else found[2] or f"gfx{found[1]}"
    types = re.match(r"Cijk_\w+?_([A-Z][A-Z0-9]*?)_", full)
    sizes = re.search(r"_(MT\d+x\d+x\d+)", full), re.search(r"_(MI\d+x\d+)", full)
    split = "SK" if re.search(r"_SK\d|GSUAMBSK", full) else ""
    words = ["Tensile", instruction_set, *(found[1] if found else "" for found in (types, *sizes)), split]
    return " ".join(filter(None, words))


def _cut(text: str, length: int = MAX_SHORT) -> str:
    """The text, cut in its middle where it is longer: Inductor's number and a template's type are at the end."""
    end = min(_TAIL, length // 2)
    return text if len(text) <= length else f"{text[: length - end - 1]}…{text[-end:]}"


# --- names beside each other ------------------------------------------------------------------------------------------


MAX_TAIL = 24
"""Characters of what only one of several names has."""


def distinct_names(names: Sequence[str]) -> list[str]:
    """The shortest form of each name that keeps different names distinct: at most ``MAX_SHORT`` characters each.

    The short name, or the short name with what only this one of those alike has:
    ``reduce_kernel<512 MeanOps float> (… 4 1)``.
    """
    alike: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        alike.setdefault(_cut(_shortened(name)), []).append(name)
    shown: dict[str, str] = {}
    for short, own in alike.items():
        shown |= {own[0]: short} if len(own) == 1 else _with_tails(short, own)
    return [shown[name] for name in names]


def _with_tails(short: str, names: Sequence[str]) -> dict[str, str]:
    """Each name as ``short`` with what is not in all of ``names``; with a checksum where that is too long to show."""
    whole = {name: _tokens(name) for name in names}
    common, *others = whole.values()
    for tokens in others:
        blocks = SequenceMatcher(None, common, tokens, autojunk=False).get_matching_blocks()
        common = [token for block in blocks for token in common[block.a : block.a + block.size]]
    tails = {name: _tail(tokens, common) for name, tokens in whole.items()}
    alike = Counter(tails.values())
    ends = {
        name: f" ~{crc32(name.encode()) & 0xFFFF:04x}" if alike[tail] > 1 else f" (… {tail})" if tail else ""
        for name, tail in tails.items()
    }
    return {name: f"{_cut(short, MAX_SHORT - len(end))}{end}" for name, end in ends.items()}


def _tail(tokens: Sequence[str], common: Sequence[str]) -> str:
    """What ``tokens`` have beside ``common``, as far as there is room; a number with the word before it."""
    shown: list[str] = []
    end = 0
    for block in SequenceMatcher(None, tokens, common, autojunk=False).get_matching_blocks():
        own = tokens[end : block.a]
        if own and own[0].isdigit() and end and not tokens[end - 1].isdigit():
            shown.append(tokens[end - 1])
        shown += own
        end = block.a + block.size
    room = list(accumulate(len(token) + 1 for token in shown))
    fitting = sum(length <= MAX_TAIL for length in room)
    return " ".join([*shown[:fitting], *(["…"] if fitting < len(shown) else [])])


def _tokens(name: str) -> list[str]:
    """What names are compared by: the words of a template; of one word its parts."""
    if name.startswith("_Z"):
        return _mangled_tokens(name)[1]
    words = re.findall(r"\w+", _function(name))
    return words if len(words) > 1 else re.split(r"_|(?<=[a-z0-9])(?=[A-Z])", name)
