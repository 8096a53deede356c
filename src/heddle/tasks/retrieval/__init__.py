"""Retrieval: the nearest pairs of a text by BM25 or embeddings; retrieve-and-edit (Hashimoto et al. 2018)."""

from heddle.tasks.retrieval.bm25 import BM25, BM25Retriever, terms_of
from heddle.tasks.retrieval.editing import Edit, Editor
from heddle.tasks.retrieval.embeddings import Embed, EmbeddingRetriever
from heddle.tasks.retrieval.entries import Entry, EntryColumns, Query, normalized, read_entries, read_queries
from heddle.tasks.retrieval.index import Neighbour, PairIndex, Retriever, distinct_texts
from heddle.tasks.retrieval.index_folder import IndexRecord, open_index, read_record, save_index
