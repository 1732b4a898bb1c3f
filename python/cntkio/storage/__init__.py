"""Bytes, whatever their format: files, remote stores, compressed texts, caches, lists of files, unfinished files.

Nothing here knows a format; `cntkio.formats` builds on this.
"""
