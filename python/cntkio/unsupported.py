"""Names of CNTK that cntkio leaves out, and their replacements, which the errors about these names give.

Other libraries read images better than CNTK did, and only CNTK's own speech trainer used lattices.
(docs/coming-from-cntk.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from cntkio.arguments import did_you_mean
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
_OF_READERS = {
    "UCIFastReader Cntk.Reader.UCIFast": "convert the data to CTF (cntkio convert uci2ctf), and read it with "
    "CTFDeserializer or, in a configuration, with CNTKTextFormatReader",
    "LMSequenceReader Cntk.Reader.LMSequence LUSequenceReader Cntk.Reader.LUSequence": "map words to indices, write "
    "CTF (cntkio convert txt2ctf), and read it with CTFDeserializer or, in a configuration, with CNTKTextFormatReader",
    "LibSVMBinaryReader Cntk.Reader.SVMBinary": "SvmlightDeserializer reads the LibSVM text from which its file was "
    "made; for a configuration convert that text to CTF (cntkio convert), and use CNTKTextFormatReader",
    "SparsePCReader Cntk.Reader.SparsePC DSSMReader": "convert the data to CTF or CBF, and use CNTKTextFormatReader or "
    "CNTKBinaryReader",
    "BinaryReader Cntk.Reader.Binary": "it is an old cache format, not CBF; write CBF and use CNTKBinaryReader",
    "Kaldi2Reader KaldiReader Cntk.Reader.Kaldi2": "KaldiDeserializer reads the archives and lists in Python; for a "
    "configuration convert them to CTF (cntkio convert), and use CNTKTextFormatReader",
    "ImageReader Cntk.Deserializers.Image": REPLACEMENTS["ImageDeserializer"],
}
INSTEAD = REPLACEMENTS | {name: advice for names, advice in _OF_READERS.items() for name in names.split()}
"""For readers and deserializers of CNTK that cntkio leaves out, what to use instead."""


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
_OLDER = {
    "text_format_minibatch_source CNTKTextFormatMinibatchSource": "write MinibatchSource(CTFDeserializer(path, "
    "StreamDefs(...))), as in CNTK since 2.0",
    "create_minibatch_source create_composite_minibatch_source minibatch_source": "write "
    "MinibatchSource(deserializers), as in CNTK since 2.0",
    "CNTKTextFormatReader CNTKTextFormatDeserializer CTFReader": "read the file with "
    "MinibatchSource(CTFDeserializer(path, StreamDefs(...)))",
    "CNTKBinaryReader CNTKBinaryFormatDeserializer CBFReader": "read the file with "
    "MinibatchSource(CBFDeserializer(path))",
    "HTKDeserializers HTKReader": "read the files with HTKFeatureDeserializer and HTKMLFDeserializer",
    "INFINITE_SAMPLES": "write INFINITELY_REPEAT",
    "DEFAULT_RANDOMIZATION_WINDOW": "write DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS",
}
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
    table = INSTEAD | _OLDER | _WHERE
    return next((advice for names, advice in table.items() if name in names.split()), None)


def no_attribute(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error about an attribute that a module does not have: its replacement, or the nearest names.

    Example:
        >>> str(no_attribute("cntkio.io", "StreamDfe", ["StreamDef"]))
        "module 'cntkio.io' has no attribute 'StreamDfe'; did you mean 'StreamDef'?"
    """
    advice = outside_io(name)
    reason = f" of CNTK: {advice}" if advice else did_you_mean(name, known)
    return AttributeError(f"module {module!r} has no attribute {name!r}{reason}")


class NamesOfCntk:
    """Finder of modules, the last to be asked, that refuses imports of unknown names, with their replacements.

    Python tries to import `cntkio.Trainer` for ``from cntkio import Trainer``, too, and reports no other error of it.

    Attributes:
        known: The public names.

    Example:
        >>> from cntkio.layers import Dense
        Traceback (most recent call last):
        ImportError: cntkio has no 'layers' of CNTK: build the model with PyTorch or JAX, ...
        >>> from cntkio import MinibatchSourc
        Traceback (most recent call last):
        ImportError: cntkio has no 'MinibatchSourc'; did you mean 'MinibatchSource'?
    """

    def __init__(self, known: Sequence[str]) -> None:
        self.known = known

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Refuse the import of a name. Python would replace a `ModuleNotFoundError` by its own error."""
        package, _, own = name.partition(".")
        # Every import that Python cannot resolve comes here, also imports of other packages.
        if package != "cntkio":
            return
        advice, near = outside_io(own), did_you_mean(own, self.known)
        if advice or near:
            raise ImportError(f"cntkio has no {own!r}{f' of CNTK: {advice}' if advice else near}", name=name)
