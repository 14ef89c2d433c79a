#include "kv/block_pool.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace eyrie::kv {
namespace {

// Only spreads keys over buckets; equality is decided by comparing. The mixing step is the
// finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
// 2014).
uint64_t mix(uint64_t state, uint64_t value) {
  state = (state ^ value) + 0x9E3779B97F4A7C15;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EB;
  return state ^ (state >> 31);
}

}  // namespace

BlockList::BlockList(BlockList&& other) noexcept
    : pool_(other.pool_), ids_(std::exchange(other.ids_, {})) {}

BlockList& BlockList::operator=(BlockList&& other) noexcept {
  if (this != &other) {
    clear();
    pool_ = other.pool_;
    ids_ = std::exchange(other.ids_, {});
  }
  return *this;
}

void BlockList::truncate(int32_t num_blocks) {
  while (size() > num_blocks) {
    pool_->drop_reference(ids_.back());
    ids_.pop_back();
  }
}

BlockPool::BlockPool(const BlockPoolConfig& config) : config_(config) {
  CHECK_GE(config.num_blocks, 1);
  CHECK_GE(config.block_size, 1);
  const size_t num_blocks = static_cast<size_t>(config.num_blocks);
  blocks_.resize(num_blocks);
  if (config.enable_prefix_caching) {
    tokens_.resize(num_blocks * static_cast<size_t>(config.block_size));
    buckets_.assign(std::bit_ceil(num_blocks * 2), kNoBlock);
  }
  for (BlockId id = 0; id < config.num_blocks; ++id) link_back(id);
  num_free_ = config.num_blocks;
}

bool BlockPool::grow(BlockList& list, int32_t num_blocks) {
  if (list.pool_ == nullptr) list.pool_ = this;
  CHECK(list.pool_ == this);
  if (num_blocks - list.size() > num_available()) return false;
  while (list.size() < num_blocks) {
    const BlockId id = take_reusable();
    block(id).num_references = 1;
    ++num_held_;
    list.ids_.push_back(id);
  }
  return true;
}

void BlockPool::find_prefix(std::span<const TokenId> tokens, std::string_view salt,
                            int32_t max_blocks, std::vector<BlockId>& found) const {
  found.clear();
  if (!config_.enable_prefix_caching) return;
  const size_t num_tail_tokens = config_.key_has_next_token ? 1 : 0;
  const size_t block_size = static_cast<size_t>(config_.block_size);
  BlockId parent = kNoBlock;
  for (int32_t block_idx = 0; block_idx < max_blocks; ++block_idx) {
    if ((static_cast<size_t>(block_idx) + 1) * block_size + num_tail_tokens > tokens.size()) return;
    const BlockId id = find(make_key(tokens, salt, block_idx, parent));
    if (id == kNoBlock) return;
    found.push_back(id);
    parent = id;
  }
}

int32_t BlockPool::count_cached(std::span<const BlockId> blocks) const {
  return static_cast<int32_t>(
      std::ranges::count_if(blocks, [this](BlockId id) { return block(id).num_references == 0; }));
}

void BlockPool::hold(BlockList& list, std::span<const BlockId> blocks) {
  if (list.pool_ == nullptr) list.pool_ = this;
  CHECK(list.pool_ == this && list.size() == 0);
  for (const BlockId id : blocks) {
    DCHECK(block(id).published);
    add_reference(id);
    list.ids_.push_back(id);
  }
}

void BlockPool::publish(BlockList& list, int32_t block_idx, std::span<const TokenId> tokens,
                        std::string_view salt) {
  if (!config_.enable_prefix_caching) return;
  CHECK_LT(block_idx, list.size());
  BlockId& own = list.ids_[static_cast<size_t>(block_idx)];
  const BlockId parent = block_idx == 0 ? kNoBlock : list.ids_[static_cast<size_t>(block_idx) - 1];
  CHECK(!block(own).published && block(own).num_references == 1);
  CHECK(parent == kNoBlock || block(parent).published);
  const Key key = make_key(tokens, salt, block_idx, parent);
  const BlockId same = find(key);
  if (same == kNoBlock) {
    insert(own, key);
    return;
  }
  add_reference(same);
  drop_reference(own);
  own = same;
}

void BlockPool::forget(const BlockList& list) {
  for (const BlockId id : list.ids()) {
    if (block(id).published && !block(id).forgotten) {
      remove_from_bucket(id);
      block(id).forgotten = true;
    }
  }
}

bool BlockPool::reset_prefix_cache() {
  if (num_held_ > 0) return false;
  for (BlockId id = front_; id != kNoBlock; id = block(id).next) {
    if (block(id).published) unpublish(id);
  }
  num_free_ += std::exchange(num_cached_, 0);
  return true;
}

std::span<const TokenId> BlockPool::published_tokens(BlockId id) const {
  if (!block(id).published) return {};
  return tokens_of(id);
}

int32_t BlockPool::num_references(BlockId id) const { return block(id).num_references; }

BlockPool::Key BlockPool::make_key(std::span<const TokenId> tokens, std::string_view salt,
                                   int32_t block_idx, BlockId parent) const {
  const size_t block_size = static_cast<size_t>(config_.block_size);
  const size_t begin = static_cast<size_t>(block_idx) * block_size;
  CHECK_LE(begin + block_size + (config_.key_has_next_token ? 1 : 0), tokens.size());
  return {.parent = parent,
          .salt = parent == kNoBlock ? salt : std::string_view(),
          .tokens = tokens.subspan(begin, block_size),
          .next_token = config_.key_has_next_token ? tokens[begin + block_size] : -1};
}

std::span<TokenId> BlockPool::tokens_of(BlockId id) {
  const size_t block_size = static_cast<size_t>(config_.block_size);
  return std::span(tokens_).subspan(static_cast<size_t>(id) * block_size, block_size);
}

std::span<const TokenId> BlockPool::tokens_of(BlockId id) const {
  return const_cast<BlockPool*>(this)->tokens_of(id);
}

size_t BlockPool::bucket_of(const Key& key) const {
  uint64_t hash = mix(static_cast<uint32_t>(key.parent), static_cast<uint32_t>(key.next_token));
  for (const char c : key.salt) hash = mix(hash, static_cast<unsigned char>(c));
  for (const TokenId token : key.tokens) hash = mix(hash, static_cast<uint32_t>(token));
  return static_cast<size_t>(hash) & (buckets_.size() - 1);
}

BlockId BlockPool::find(const Key& key) const {
  for (BlockId id = buckets_[bucket_of(key)]; id != kNoBlock; id = block(id).bucket_next) {
    const Block& candidate = block(id);
    if (candidate.parent == key.parent && candidate.next_token == key.next_token &&
        candidate.salt == key.salt && std::ranges::equal(tokens_of(id), key.tokens)) {
      return id;
    }
  }
  return kNoBlock;
}

void BlockPool::insert(BlockId id, const Key& key) {
  Block& added = block(id);
  added.published = true;
  added.parent = key.parent;
  added.next_token = key.next_token;
  added.salt = key.salt;
  std::ranges::copy(key.tokens, tokens_of(id).begin());
  BlockId& bucket = buckets_[bucket_of(key)];
  added.bucket_next = std::exchange(bucket, id);
  if (key.parent != kNoBlock) ++block(key.parent).num_children;
}

void BlockPool::unpublish(BlockId id) {
  Block& removed = block(id);
  CHECK_EQ(removed.num_children, 0);
  if (!std::exchange(removed.forgotten, false)) remove_from_bucket(id);
  if (removed.parent != kNoBlock) --block(removed.parent).num_children;
  removed.parent = kNoBlock;
  removed.salt.clear();
  removed.published = false;
}

void BlockPool::remove_from_bucket(BlockId id) {
  Block& removed = block(id);
  BlockId* link = &buckets_[bucket_of({.parent = removed.parent,
                                       .salt = removed.salt,
                                       .tokens = tokens_of(id),
                                       .next_token = removed.next_token})];
  while (*link != id) link = &block(*link).bucket_next;
  *link = std::exchange(removed.bucket_next, kNoBlock);
}

void BlockPool::link_front(BlockId id) {
  block(id).prev = kNoBlock;
  block(id).next = front_;
  (front_ == kNoBlock ? back_ : block(front_).prev) = id;
  front_ = id;
}

void BlockPool::link_back(BlockId id) {
  block(id).next = kNoBlock;
  block(id).prev = back_;
  (back_ == kNoBlock ? front_ : block(back_).next) = id;
  back_ = id;
}

void BlockPool::unlink(BlockId id) {
  const Block& removed = block(id);
  (removed.prev == kNoBlock ? front_ : block(removed.prev).next) = removed.next;
  (removed.next == kNoBlock ? back_ : block(removed.next).prev) = removed.prev;
}

BlockId BlockPool::take_reusable() {
  const BlockId id = front_;
  CHECK_NE(id, kNoBlock);
  unlink(id);
  if (block(id).published) {
    unpublish(id);
    --num_cached_;
  } else {
    --num_free_;
  }
  return id;
}

void BlockPool::add_reference(BlockId id) {
  if (block(id).num_references++ > 0) return;
  unlink(id);
  --num_cached_;
  ++num_held_;
}

void BlockPool::drop_reference(BlockId id) {
  CHECK_GE(block(id).num_references, 1);
  if (--block(id).num_references > 0) return;
  --num_held_;
  if (block(id).published) {
    link_back(id);
    ++num_cached_;
  } else {
    link_front(id);
    ++num_free_;
  }
}

void BlockPool::check_integrity() const {
  CHECK_EQ(num_free_ + num_cached_ + num_held_, config_.num_blocks);
  int32_t num_free = 0, num_cached = 0;
  BlockId prev = kNoBlock;
  for (BlockId id = front_; id != kNoBlock; id = block(id).next) {
    CHECK_EQ(block(id).num_references, 0);
    CHECK_EQ(block(id).prev, prev);
    CHECK(block(id).published || num_cached == 0, "free block {} behind a cached one", id);
    ++(block(id).published ? num_cached : num_free);
    CHECK_LE(num_free + num_cached, config_.num_blocks);  // a cycle ends here
    prev = id;
  }
  CHECK_EQ(prev, back_);
  CHECK_EQ(num_free, num_free_);
  CHECK_EQ(num_cached, num_cached_);

  int64_t num_children = 0, num_with_parent = 0;
  for (BlockId id = 0; id < config_.num_blocks; ++id) {
    const Block& each = block(id);
    num_children += each.num_children;
    if (!each.published) {
      CHECK_EQ(each.num_children, 0);
      continue;
    }
    if (each.parent != kNoBlock) {
      ++num_with_parent;
      const Block& parent = block(each.parent);
      CHECK(parent.published && parent.num_references >= each.num_references);
    }
    const BlockId found = find({.parent = each.parent,
                                .salt = each.salt,
                                .tokens = tokens_of(id),
                                .next_token = each.next_token});
    CHECK(each.forgotten ? found != id : found == id, "block {} is found as {}", id, found);
  }
  CHECK_EQ(num_children, num_with_parent);
}

}  // namespace eyrie::kv
