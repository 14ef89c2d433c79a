// The KV cache as ids: a fixed number of blocks of block_size token slots, who holds them, and
// which of them hold a known run of tokens that a later sequence may reuse (the prefix cache). No
// KV bytes live here (runtime has them). Owned by the scheduler, engine thread only; nothing
// allocates after construction, except a BlockList whose vector grows.
//
// A block is in one of three states, and free + cached + held = total at all times:
//   free    nobody refers to it, its content means nothing
//   cached  nobody refers to it, but its content is known and may be found again
//   held    one BlockList or more refer to it (published or not)
//
// The prefix cache is a tree. A published block is the child of the block before it, found by
// (parent block, its tokens); the tokens and the parent are compared, the hash only chooses where
// to look, so a collision costs a comparison and never gives wrong text. Whoever holds a block
// holds its parent too, and lists give blocks back last block first, so a parent leaves use after
// its children: the least recently used block is always a leaf, and evicting it leaves nothing
// dangling.
//
//                     evicted first                               evicted last
//   reusable list:    free, free, …, | cached leaf, …, cached child, its parent, …
//
// With a draft model that keeps KV, the draft's entry at position i also depends on token i + 1.
// The pool then puts the token that follows a block into its key: a block found again is right for
// the draft to its last slot, and no matched block has to be thrown away and recomputed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace eyrie::kv {

using BlockId = int32_t;
using TokenId = int32_t;
inline constexpr BlockId kNoBlock = -1;

class BlockPool;

// Blocks of one sequence, in position order. Move-only; gives its blocks back when it dies. The
// pool must outlive it.
class BlockList {
 public:
  BlockList() = default;
  explicit BlockList(BlockPool& pool) : pool_(&pool) {}
  ~BlockList() { clear(); }
  BlockList(BlockList&& other) noexcept;
  BlockList& operator=(BlockList&& other) noexcept;
  BlockList(const BlockList&) = delete;
  BlockList& operator=(const BlockList&) = delete;

  int32_t size() const { return static_cast<int32_t>(ids_.size()); }
  std::span<const BlockId> ids() const { return ids_; }
  void reserve(int32_t num_blocks) { ids_.reserve(static_cast<size_t>(num_blocks)); }

  // Gives back all but the first num_blocks, last block first.
  void truncate(int32_t num_blocks);
  void clear() { truncate(0); }

 private:
  friend class BlockPool;
  BlockPool* pool_ = nullptr;
  std::vector<BlockId> ids_;
};

struct BlockPoolConfig {
  int32_t num_blocks = 0;
  int32_t block_size = 16;  // tokens
  bool enable_prefix_caching = true;
  bool key_has_next_token = false;  // a draft model keeps KV in the same blocks
};

class BlockPool {
 public:
  explicit BlockPool(const BlockPoolConfig& config);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  int32_t block_size() const { return config_.block_size; }
  int32_t num_blocks() const { return config_.num_blocks; }
  int32_t num_free() const { return num_free_; }
  int32_t num_cached() const { return num_cached_; }
  int32_t num_held() const { return num_held_; }
  int32_t num_available() const { return num_free_ + num_cached_; }  // what grow() can hand out

  // Appends blocks until the list has num_blocks of them: all, or none when too few are available.
  // Cached blocks are evicted only when no free one is left, least recently used first.
  [[nodiscard]] bool grow(BlockList& list, int32_t num_blocks);

  // Writes into found (cleared first) the longest published chain that holds the first tokens of a
  // sequence, at most max_blocks long. Takes no reference: valid until the pool changes.
  void find_prefix(std::span<const TokenId> tokens, std::string_view salt, int32_t max_blocks,
                   std::vector<BlockId>& found) const;
  // How many of these blocks are cached, i.e. stop being available once a list holds them.
  int32_t count_cached(std::span<const BlockId> blocks) const;
  // The empty list takes these blocks, as found by find_prefix.
  void hold(BlockList& list, std::span<const BlockId> blocks);

  // The list's block block_idx now holds its tokens for good (computed, and no draft among them).
  // Blocks of a list are published in order, from 0. tokens is the whole sequence so far. When the
  // same content is published already, the list takes that block instead and gives back its own:
  // equal prefixes share memory even when they were computed at the same time.
  void publish(BlockList& list, int32_t block_idx, std::span<const TokenId> tokens,
               std::string_view salt);

  // Nobody shall find the list's published blocks again: what was computed into them is wrong. They
  // stay held by who holds them, and their place in the tree, until they are reused; the same
  // content computed anew is published beside them.
  void forget(const BlockList& list);

  // Forgets all cached content; false (and nothing done) while a block is held.
  bool reset_prefix_cache();

  // What a published block holds, for tests; empty when it is not published.
  std::span<const TokenId> published_tokens(BlockId id) const;
  int32_t num_references(BlockId id) const;

  // CHECKs every invariant above; O(num_blocks).
  void check_integrity() const;

 private:
  friend class BlockList;

  struct Block {
    int32_t num_references = 0;
    int32_t num_children = 0;  // published blocks that follow this one
    BlockId prev = kNoBlock;   // reusable list, while num_references == 0
    BlockId next = kNoBlock;
    BlockId parent = kNoBlock;  // while published
    BlockId bucket_next = kNoBlock;
    TokenId next_token = -1;  // part of the key with key_has_next_token
    bool published = false;
    bool forgotten = false;  // published, but in no bucket
    std::string salt;        // first blocks only: sequences of different salts share nothing
  };

  struct Key {
    BlockId parent;
    std::string_view salt;  // empty unless parent == kNoBlock
    std::span<const TokenId> tokens;
    TokenId next_token;
  };
  Key make_key(std::span<const TokenId> tokens, std::string_view salt, int32_t block_idx,
               BlockId parent) const;
  Block& block(BlockId id) { return blocks_[static_cast<size_t>(id)]; }
  const Block& block(BlockId id) const { return blocks_[static_cast<size_t>(id)]; }
  std::span<TokenId> tokens_of(BlockId id);
  std::span<const TokenId> tokens_of(BlockId id) const;

  size_t bucket_of(const Key& key) const;
  BlockId find(const Key& key) const;
  void insert(BlockId id, const Key& key);
  void unpublish(BlockId id);
  void remove_from_bucket(BlockId id);

  void link_front(BlockId id);
  void link_back(BlockId id);
  void unlink(BlockId id);
  BlockId take_reusable();
  void add_reference(BlockId id);
  void drop_reference(BlockId id);

  BlockPoolConfig config_;
  std::vector<Block> blocks_;
  std::vector<TokenId> tokens_;   // [num_blocks, block_size], of published blocks
  std::vector<BlockId> buckets_;  // power of two
  BlockId front_ = kNoBlock;      // reused next
  BlockId back_ = kNoBlock;
  int32_t num_free_ = 0;
  int32_t num_cached_ = 0;
  int32_t num_held_ = 0;
};

}  // namespace eyrie::kv
