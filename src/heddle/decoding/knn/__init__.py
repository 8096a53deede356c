"""kNN language models (kNN-LM): datastores on the disk, the search for neighbours, and the head that mixes them in."""

from heddle.decoding.knn.approximate import IndexSearch, KnnIndexConfig, build_index, open_index
from heddle.decoding.knn.build import BuildOptions, build_datastore
from heddle.decoding.knn.datastore import Datastore, DatastoreRecord, check_precision, open_datastore, weights_hash
from heddle.decoding.knn.head import KnnConfig, KnnHead, check_model, neighbour_weights, with_knn
from heddle.decoding.knn.search import ExactSearch, Neighbours, NeighbourSearch
