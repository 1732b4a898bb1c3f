"""CNTK's configuration files: the language, the readers, and what they become here. (docs/configuration.md)"""
