"""Read memories from files that people and other tools maintain: JSON notes, and sections of Markdown documents.

Each memory has a stable id, so a second import replaces changed memories and skips the rest. Read `storing` first.
"""

from memory_agent.notes.markdown import SECTION, SUFFIXES, outline, read_markdown, sections
from memory_agent.notes.note import FILE, Note
from memory_agent.notes.plain import has_notes, read_plain
from memory_agent.notes.storing import StoredNotes, index_documents, read_document, store_notes
from memory_agent.notes.watching import DocumentWatch

__all__ = [
    "FILE",
    "SECTION",
    "SUFFIXES",
    "DocumentWatch",
    "Note",
    "StoredNotes",
    "has_notes",
    "index_documents",
    "outline",
    "read_document",
    "read_markdown",
    "read_plain",
    "sections",
    "store_notes",
]
