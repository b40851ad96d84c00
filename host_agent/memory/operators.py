"""How gradients depend on the tensors that an operator saves, and so what compression may change of them.

Autograd's hooks do not say which operator saves a tensor; a mode that sees every call of a torch function does. An
operator that it does not see (of an extension, in TorchScript, of an `autograd.Function`) or that is not listed here
keeps its tensors: some compare them (`amax` finds its maximum again by equality), others subtract them from each other
(`var`, `mse_loss`), or add up parts that cancel (`div`, if the divisor depends on the dividend)."""

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types that are compressed, and that torch functions treat alike; subclasses define their own."""


class Rule(enum.IntEnum):
    """What a gradient tolerates of a saved tensor's errors."""

    LINEAR = 0
    """They are proportional in the gradient: products with matrices; ReLU and pooling, which need signs or shapes."""
    SMOOTH = 1
    """Errors far below 1 have as small an effect, however large the values: smooth functions with exponential tails."""
    CENTERED = 2
    """The tensor is divided by its standard deviation, per row or channel, which limits the error."""
    PRECISE = 3
    """Relative errors count, or those of 1 - |x|: logarithms, powers, and functions that saturate. Elements near 0 and
    near 1 are stored exactly."""
    EXACT = 4
    """Unknown, or errors could be of any effect: the tensor stays as it is."""

    def stricter(self) -> list["Rule"]:
        """Rules by which a tensor may be stored for this one."""
        return [Rule.EXACT, *[rule for rule in (Rule.CENTERED, Rule.PRECISE) if self <= Rule.SMOOTH], self]


_LINEAR = (
    "linear bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d matmul rmatmul mm bmm mv "
    "addmm addbmm baddbmm addmv addr dot vdot inner outer ger einsum tensordot "
    "relu relu_ leaky_relu leaky_relu_ prelu rrelu "
    "dropout dropout_ alpha_dropout feature_dropout feature_alpha_dropout "
    "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices "
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d "
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"
)
_SMOOTH = "gelu silu silu_ mish softplus logsigmoid log_sigmoid elu celu selu glu sin cos erf logsumexp logaddexp"
_PRECISE = (
    "mul mul_ multiply imul rmul addcmul square pow ipow rtruediv rdiv reciprocal sqrt sqrt_ rsqrt rsqrt_ "
    "log log2 log10 log1p exp exp_ exp2 expm1 tanh tanh_ sigmoid sigmoid_ softmax cross_entropy_loss"
)
_CENTERED = "layer_norm batch_norm group_norm instance_norm rms_norm"
RULES = {
    name: rule
    for rule, names in zip(Rule, (_LINEAR, _SMOOTH, _CENTERED, _PRECISE), strict=False)
    for name in names.split()
}
"""Name of a function, without double underscores at its ends → rule of the floats that it saves."""
MIN_VARIANCE = 1e-5
"""Variance of a row or channel, relative to its mean square, below which rounding in float32 makes it uncertain: then
the tensor stays uncompressed."""
MAX_POWER = 4
"""Largest exponent of `pow` by the rule PRECISE: relative errors are multiplied by it."""


class Operators(TorchFunctionMode):
    """Mode that knows the torch function in progress. `outside`: rule of what is saved outside of all functions.
    `strictest`: of all rules asked for so far."""

    def __init__(self, outside: Rule = Rule.EXACT) -> None:
        super().__init__()
        self.outside, self.strictest = outside, Rule.LINEAR
        self._opened: list[Callable[..., Any]] = []
        self._call: tuple[str, tuple[Any, ...], Mapping[str, Any]] | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        # A function that chooses between two others passes itself on as either: that call is not opened again.
        if all(each in PLAIN for each in types) and func not in self._opened and (opened := _opened(func)) is not None:
            self._opened.append(func)
            try:
                with self:
                    return opened(*args, **kwargs)
            finally:
                self._opened.pop()
        before, self._call = self._call, (getattr(func, "__name__", ""), args, kwargs)
        try:
            return func(*args, **kwargs)
        finally:
            self._call = before

    def rule(self, tensor: torch.Tensor) -> Rule:
        """The rule of a tensor of floats that is being saved."""
        rule = self.outside if self._call is None else _rule(*self._call, tensor)
        self.strictest = max(self.strictest, rule)
        return rule

    def width(self, rule: Rule, tensor: torch.Tensor) -> torch.Tensor | None:
        """float64[1]: width within which the operator in progress is nearly linear; None if it is infinite.

        Normalization divides by a standard deviation. Of several rows or channels, the mean of the inverse squares
        counts, as errors add up in the gradient; zeros have no error."""
        if rule is Rule.SMOOTH:
            return tensor.new_ones(1, dtype=torch.float64)
        if rule is not Rule.CENTERED:
            return None
        assert self._call is not None
        name, args, kwargs = self._call
        x = tensor.detach()
        dims = list(range(2, x.dim()))
        if name == "layer_norm" or name == "rms_norm":
            dims = list(range(x.dim() - len(_argument(args, kwargs, 1, "normalized_shape")), x.dim()))
        elif name == "group_norm":
            x = x.reshape(len(x), _argument(args, kwargs, 1, "num_groups"), -1)
            dims = [2]
        elif name == "batch_norm":
            dims = [0, *dims]
        count = math.prod(x.shape[dim] for dim in dims)
        mean = x.sum(dims, dtype=torch.float32).double() / count  # var_mean takes five times as long
        square = torch.linalg.vector_norm(x, dim=dims, dtype=torch.float32).double().square() / count
        variance = square - mean.square()
        variance.masked_fill_(variance < MIN_VARIANCE * square, 0).masked_fill_(square == 0, math.inf)
        width: torch.Tensor = variance.reciprocal().mean().rsqrt().view(1)
        return width

    def sums_to_one(self) -> int | None:
        """Dimension whose sums are 1 in the tensor that is being saved: of softmax. Its gradient is a difference of the
        output's gradient and a mean of that, weighted by the tensor."""
        if self._call is None or self._call[0] != "softmax":
            return None
        dim = _argument(*self._call[1:], 1, "dim")
        return dim if isinstance(dim, int) else None


def _rule(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], tensor: torch.Tensor) -> Rule:
    name = name.removeprefix("__").removesuffix("__")
    rule = RULES.get(name, Rule.EXACT)
    if name in ("pow", "ipow"):
        exponent = _argument(args, kwargs, 1, "exponent")
        is_known = isinstance(exponent, int | float) and abs(exponent) <= MAX_POWER
    elif name == "cross_entropy_loss":
        # The gradient of a class's logit is its probability, minus that of the target. If both are between 0 and 1,
        # they cancel.
        is_known = not args[1].is_floating_point() and not _argument(args, kwargs, 5, "label_smoothing")
    elif rule is Rule.CENTERED:
        is_known = tensor.shape == args[0].shape  # otherwise a mean, or the inverse of a standard deviation
    else:
        is_known = True
    return rule if is_known else Rule.EXACT


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def _opened(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """A function of `torch.nn.functional` so that a mode sees the functions that it calls: as it is, it is one call for
    a mode. None for other functions."""
    if getattr(func, "__module__", None) != functional.__name__ or not isinstance(func, FunctionType):
        return None
    scope = {**func.__globals__, **dict.fromkeys(_CHECKS, lambda *_: False)}  # of now: functions may be replaced
    opened = FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)
    opened.__kwdefaults__ = func.__kwdefaults__
    return opened
