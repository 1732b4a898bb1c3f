"""Names of CNTK that cntkio leaves out, and their replacements, which the errors of these deserializers name.

Other libraries read images better than CNTK did, and only CNTK's own speech trainer used lattices.
(docs/coming-from-cntk.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from cntkio.errors import UnsupportedError

_INSTEAD_OF_IMAGES = (
    "torchvision.io.decode_image in a torch.utils.data.Dataset, or bring the images into a UserDeserializer, which "
    "can be joined with text by sequence id (docs/coming-from-cntk.md)"
)
REPLACEMENTS = {
    "ImageDeserializer": "cntkio reads no images; read the map file (a path, a tab and a class per line) with "
    f"{_INSTEAD_OF_IMAGES}",
    "Base64ImageDeserializer": "cntkio reads no images; give base64.b64decode of each line's last column to "
    f"{_INSTEAD_OF_IMAGES}",
    "LatticeDeserializer": "cntkio reads no lattices, which only CNTK's sequence training took; train sequence "
    "criteria with k2 (lattice-free MMI), and read the features with HTKFeatureDeserializer "
    "(docs/coming-from-cntk.md)",
}
"""What to use instead of a deserializer."""


def _refuse(name: str) -> NoReturn:
    raise UnsupportedError(f"{name}: {REPLACEMENTS[name]}", key=name)


# Functions with CNTK's parameters, so that a call of a CNTK program gets this error and no TypeError.
def ImageDeserializer(filename: str, streams: Mapping[str, Any]) -> NoReturn:  # noqa: N802 - CNTK's name
    """Raise `UnsupportedError`: read a map file of images and classes in a PyTorch dataset, with torchvision.

    Example:
        >>> ImageDeserializer("map.txt", {})
        Traceback (most recent call last):
        cntkio.errors.UnsupportedError: ImageDeserializer: cntkio reads no images; ...
    """
    _refuse("ImageDeserializer")


def Base64ImageDeserializer(filename: str, streams: Mapping[str, Any]) -> NoReturn:  # noqa: N802 - CNTK's name
    """Raise `UnsupportedError`: pass the result of ``base64.b64decode`` to ``torchvision.io.decode_image``."""
    _refuse("Base64ImageDeserializer")


def LatticeDeserializer(lattice_index_file: str, streams: Mapping[str, Any]) -> NoReturn:  # noqa: N802 - CNTK's name
    """Raise `UnsupportedError`: lattices were input of CNTK's own sequence training; use k2 instead."""
    _refuse("LatticeDeserializer")


# The names in CNTK 2.7's package `cntk`, grouped by what replaces them.
_MODEL = """
Axis BlockFunction Constant Evaluator Function Parameter Variable abs acos alias argmax argmin as_block as_composite
asin asinh assign atan atanh axis batch_normalization bilinear binary_cross_entropy cast ceil classification_error clip
combine constant convolution convolution_transpose cos cosh cosine_distance crop_automatic crop_manual
cross_entropy_with_softmax default_options default_options_for depth_to_space dropout edit_distance_error element_max
element_min element_select element_times elu equal eval evaluator exp expand_dims eye_like flatten floor fmeasure
forward_backward functions gather glorot_normal glorot_uniform greater greater_equal hard_sigmoid hardmax he_normal
he_uniform image_scaler initializer input input_variable labels_to_graph lambda_rank lattice_sequence_with_softmax
layers leaky_relu less less_equal load_model local_response_normalization log log_add_exp log_softmax losses mean
metrics minus native_user_function ndcg_at_1 negate normal not_equal one_hot ones_like ops optimized_rnnstack
output_variable pad param_relu parameter placeholder plus pooling pow random_sample reciprocal reduce_l1 reduce_l2
reduce_log_sum_exp reduce_max reduce_mean reduce_min reduce_prod reduce_sum reduce_sum_square relu reshape roipooling
round selu sequence sigmoid sin sinh slice softmax softplus softsign space_to_depth splice sqrt square squared_error
squeeze stop_gradient sum swapaxes tan tanh times times_transpose to_batch to_sequence to_sequence_like top_k transpose
truncated_normal uniform unpack_batch unpooling user_function variables weighted_binary_cross_entropy xavier zeros_like
"""
_TRAINING = """
CheckpointConfig CrossValidationConfig Learner TestConfig Trainer TrainingSession UserLearner adadelta adagrad adam
debugging fsadagrad learners learning_parameter_schedule learning_parameter_schedule_per_sample learning_rate_schedule
minibatch_size_schedule momentum_as_time_constant_schedule momentum_schedule momentum_schedule_per_sample momentum_sgd
nesterov rmsprop sgd train trainer training_parameter_schedule training_session universal
"""
_DEVICES = """
DeviceDescriptor DeviceKind all_devices cpu device get_gpu_properties gpu set_excluded_devices try_set_default_device
use_default_device
"""
_RANKS = """
Communicator DistributedLearner WorkerDescriptor block_momentum_distributed_learner data_parallel_distributed_learner
distributed mpi_communicator
"""
_WHERE = {
    _MODEL: "build the model with PyTorch or JAX, from the minibatches of cntkio.torch and cntkio.jax",
    _TRAINING: "train with PyTorch or JAX, on the minibatches of cntkio.torch and cntkio.jax",
    _DEVICES: "minibatches are in the CPU's memory; cntkio.torch.convert(minibatch, device=...) moves them",
    _RANKS: "train with torch.distributed; cntkio.torch.MinibatchDataset gives each rank its share",
    "NDArrayView asarray asvalue": "the data of minibatches are NumPy arrays: minibatch['x'].asarray()",
    "logging": "messages go to logging.getLogger('cntkio'); CNTK's levels are cntkio.TraceLevel",
    "cntk_py core internal misc utils": "cntkio has the names of cntk.io only",
}


def outside_io(name: str) -> str | None:
    """Return the replacement for a name of CNTK 2.7 that is not in `cntk.io`; None: CNTK has no such name.

    Example:
        >>> outside_io("Trainer")
        'train with PyTorch or JAX, on the minibatches of cntkio.torch and cntkio.jax'
    """
    return next((advice for names, advice in _WHERE.items() if name in names.split()), None)


class NamesOfCntk:
    """Finder of modules, the last to be asked, that refuses imports of CNTK's names, with their replacements.

    Python tries to import `cntkio.Trainer` for ``from cntkio import Trainer``, too, and reports no other error of it.

    Example:
        >>> from cntkio.layers import Dense
        Traceback (most recent call last):
        ImportError: cntkio has no 'layers' of CNTK: build the model with PyTorch or JAX, ...
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Refuse the import of a name of CNTK. Python would replace a `ModuleNotFoundError` by its own error."""
        package, _, own = name.partition(".")
        # Every import that Python cannot resolve comes here, also imports of other packages.
        advice = outside_io(own) if package == "cntkio" else None
        if advice:
            raise ImportError(f"cntkio has no {own!r} of CNTK: {advice}", name=name)
