"""What all stores of a container may use together: one block cache, one write-buffer budget, few files."""

from __future__ import annotations

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    WriteBufferManager,
)

_MIB = 1 << 20
# With this many overlapping files a restore waits for compaction. At twice as many RocksDB itself would make
# the next write wait, and hold the GIL meanwhile.
CROWDED_FILES = 40
# RocksDB raises anything lower to 20 by itself.
_LEAST_FILES = 20


class Budget:
    """Shared by every store of a container; `stores` is how many there will be at most.

    Write buffers are charged to the cache, so that `cache_bytes` bounds both together. It is a soft bound:
    a store that has to write may exceed it for as long as its flush takes, but nobody waits.
    """

    def __init__(self, cache_bytes: int, stores: int, open_files: int = 1024) -> None:
        stores = max(1, stores)
        self._buffer_bytes = max(_MIB, cache_bytes // 3)
        self._cache = Cache(max(2 * _MIB, cache_bytes))
        self._buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            self._buffer_bytes, False, self._cache
        )
        self._store_files = max(_LEAST_FILES, open_files // stores)
        # Together they fit into the budget: if quiet stores could hold all of it, a busy one would flush at
        # every write. Larger ones mean fewer flushes, but slower writes and reads: 64 MiB cost a sixth more
        # time than 16.
        self._store_buffer_bytes = max(_MIB >> 2, min(16 * _MIB, self._buffer_bytes * 3 // 4 // stores))
        self._options = self._make_options()

    @property
    def options(self) -> Options:
        """The options of one store. They hold the shared cache, so all stores take the same ones."""
        return self._options

    def used_bytes(self) -> int:
        """Memory of blocks and write buffers of all stores together."""
        return int(self._cache.get_usage())

    def buffered_bytes(self) -> int:
        """The part of it that is in write buffers, not yet on disk."""
        return int(self._buffers.get_usage())

    def _make_options(self) -> Options:
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        table.set_bloom_filter(10, False)
        table.set_format_version(5)
        # Index and filters count against the cache; else they would grow with the stores, unbounded.
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self._buffers)
        options.set_write_buffer_size(self._store_buffer_bytes)
        # A write that finds all buffers waiting for their flush would wait, too, and hold the GIL.
        options.set_max_write_buffer_number(4)
        options.set_max_open_files(self._store_files)
        options.set_compression_type(DBCompressionType.lz4())
        # One thread for flushes and one for compactions, shared by all stores of the process.
        options.set_max_background_jobs(2)
        options.set_max_file_opening_threads(1)
        options.set_skip_stats_update_on_db_open(True)
        # A restore ingests a handful of overlapping files; compacting them at once would slow it down.
        options.set_level_zero_file_num_compaction_trigger(8)
        options.set_level_zero_slowdown_writes_trigger(CROWDED_FILES * 3 // 2)
        options.set_level_zero_stop_writes_trigger(CROWDED_FILES * 2)
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(_MIB)
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        options.set_max_manifest_file_size(4 * _MIB)
        options.set_manifest_preallocation_size(64 << 10)
        return options
