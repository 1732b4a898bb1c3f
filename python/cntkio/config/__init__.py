"""CNTK's configuration files: the language, the readers, and what they become here. (docs/configuration.md)"""

from cntkio.config.readers import ReaderConfig, read_config

__all__ = ["ReaderConfig", "read_config"]
