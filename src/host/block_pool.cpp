#include "host/block_pool.hpp"

#include "base/check.hpp"
#include "base/error.hpp"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

namespace verbena::host {

/// Named, because BlockPool::State has members of these types.
namespace blocks {

using PageNumber = std::uint32_t;
constexpr PageNumber kNoPage = ~PageNumber{0};

/// What the first page of something, or its last one, says of it.
enum class PageKind : std::uint8_t {
  kInside,  ///< Inside a span: says nothing.
  kFree,    ///< The first and the last of a free span.
  kSpan,    ///< The first of a long block.
  kSlab,    ///< Each page of a slab.
};

/// One for each page of the range. Lists are rings.
struct Page {
  std::uint64_t free = 0;  ///< First of a slab. Bit i: block i may be given out.
  PageNumber next = 0;     ///< For the ring of slabs of one fullness, or of free spans of one bin.
  PageNumber previous = 0;
  PageNumber head = 0;   ///< The first page of the slab, or of the free span that ends here.
  PageNumber pages = 0;  ///< For the slab, the long block or the free span.
  PageKind kind = PageKind::kInside;
  std::uint8_t size_class = 0;  ///< The rest: first of a slab.
  std::uint8_t blocks = 0;      ///< 1 to 64.
  std::uint8_t free_count = 0;  ///< Bits of `free`.
  std::uint8_t level = 0;       ///< Which ring it is in, or kFull, or kClosed.
  std::uint8_t low = 0;         ///< With no more free blocks than this it leaves its ring,
  std::uint8_t high = 0;        ///< and with more than this.
};
static_assert(sizeof(Page) == 32);

/// Blocks and their bytes, with one writer and any number of readers.
struct BlockTally {
  Count blocks, bytes;
  void add(std::uint64_t more) noexcept {
    ++blocks;
    bytes += more;
  }
  void remove(std::uint64_t less) noexcept {
    --blocks;
    bytes -= less;
  }
};

/// Rings of slabs with up to a quarter of their blocks free, up to two, and so on: the fullest are used first.
constexpr unsigned kLevels = 4;
constexpr unsigned kFull = kLevels;        ///< In no ring.
constexpr unsigned kClosed = kLevels + 1;  ///< In no ring: being cleared.

/// A block of a slab in one word; kNone: none.
struct Place {
  [[nodiscard]] static constexpr std::uint64_t pack(PageNumber slab, std::uint64_t block) noexcept {
    return std::uint64_t{slab} << 6 | block;
  }
  [[nodiscard]] static constexpr PageNumber slab_of(std::uint64_t place) noexcept {
    return static_cast<PageNumber>(place >> 6);
  }
  [[nodiscard]] static constexpr std::uint64_t block_of(std::uint64_t place) noexcept { return place & 63; }
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
};

/// For one size.
struct alignas(64) SizeClass {
  std::array<PageNumber, kLevels> slabs{kNoPage, kNoPage, kNoPage, kNoPage};  ///< Rings, by what is free.
  std::uint64_t last = Place::kNone;  ///< The block that was freed last: in no slab's `free`.
  std::uint32_t bytes = 0;            ///< For a block.
  std::uint32_t reciprocal = 0;       ///< 2^26 / bytes, rounded up.
  Count used;                         ///< Blocks.
  Count blocks;                       ///< For all slabs.
  Count pages;                        ///< The same.
};
static_assert(sizeof(SizeClass) == 64);

/// Up to 15 pages a bin has spans of one length, above that an eighth of a power of two.
constexpr unsigned bin_of(std::uint64_t pages) noexcept {
  if (pages < 16) return static_cast<unsigned>(pages);
  const unsigned shift = static_cast<unsigned>(std::bit_width(pages)) - 4;
  return 8 + shift * 8 + static_cast<unsigned>(pages >> shift) - 8;
}
constexpr std::uint64_t kMostPages = std::uint64_t{1} << 31;
constexpr unsigned kBins = bin_of(kMostPages) + 1;
static_assert(bin_of(15) == 15 && bin_of(16) == 16 && bin_of(18) == 17 && bin_of(32) == 24);

}  // namespace blocks

namespace {

using blocks::bin_of;
using blocks::BlockTally;
using blocks::kBins;
using blocks::kClosed;
using blocks::kFull;
using blocks::kLevels;
using blocks::kNoPage;
using blocks::Page;
using blocks::PageKind;
using blocks::PageNumber;
using blocks::Place;
using blocks::SizeClass;

constexpr unsigned kPageShift = 12;
constexpr unsigned kBlockUnitShift = 6;
static_assert(BlockSizes::kPage == 1u << kPageShift && BlockSizes::kUnit == 1u << kBlockUnitShift);
constexpr std::uint64_t kPageUnits = BlockSizes::kPageUnits;
/// A slab has no more bits than a word.
constexpr std::uint64_t kMostBlocks = 64;
constexpr unsigned kReciprocalShift = 26;
constexpr std::uint32_t reciprocal_of(std::uint64_t bytes) noexcept {
  return static_cast<std::uint32_t>(((std::uint64_t{1} << kReciprocalShift) + bytes - 1) / bytes);
}
/// Powers of two up to the longest span.
constexpr unsigned kTallies = 38;

/// For a slab without a remainder: 64 blocks of up to 1 KiB, 8 of the longest.
constexpr std::uint64_t pages_for(std::uint64_t units) noexcept {
  if (units <= 16) return units;
  if (units <= 32) return units / 2;
  return units <= 64 ? units / 4 : units / 8;
}

/// Whether the reciprocals of all classes find the block that begins at each offset in a slab.
constexpr bool divide_exactly() noexcept {
  for (unsigned c = 0; c < BlockSizes::kClasses; ++c) {
    const std::uint64_t units = BlockSizes::units_of(c), bytes = units * BlockSizes::kUnit;
    for (std::uint64_t block = 0; block < pages_for(units) * kPageUnits / units; ++block)
      if (block * bytes * reciprocal_of(bytes) >> kReciprocalShift != block) return false;
  }
  return true;
}
static_assert(divide_exactly());

constexpr auto kClassOfUnits = [] {
  std::array<std::uint8_t, BlockSizes::kMostSlabUnits + 1> classes{};
  for (std::uint64_t units = 1; units < classes.size(); ++units)
    classes[units] = static_cast<std::uint8_t>(BlockSizes::class_for_units(units));
  return classes;
}();

constexpr std::uint64_t block_bit(std::uint64_t index) noexcept { return std::uint64_t{1} << index; }
constexpr std::uint64_t all_of(unsigned blocks) noexcept { return ~std::uint64_t{0} >> (kMostBlocks - blocks); }
/// The smallest power of two that holds so many units, and the largest that they hold.
constexpr unsigned tally_of_block(std::uint64_t units) noexcept {
  return static_cast<unsigned>(std::bit_width(units - 1));
}
constexpr unsigned tally_of_span(std::uint64_t units) noexcept {
  return static_cast<unsigned>(std::bit_width(units)) - 1;
}

/// The block of a slab that holds the byte at `inside`, counted from the slab's first.
std::uint64_t block_at(const SizeClass& of, std::uint64_t inside) noexcept {
  return inside * of.reciprocal >> kReciprocalShift;
}
/// Whether the block is a live one, and begins there.
bool is_live(const SizeClass& of, const Page& slab, std::uint64_t block, std::uint64_t inside) noexcept {
  return block * of.bytes == inside && block < slab.blocks && (slab.free >> block & 1) == 0;
}

/// For a slab that has free blocks, and not only those.
unsigned level_of(const Page& slab) noexcept { return (slab.free_count - 1U) * kLevels / slab.blocks; }

}  // namespace

struct BlockPool::State {
  std::byte* base = nullptr;
  PageNumber page_count = 0;
  std::unique_ptr<Page[]> pages;
  std::array<SizeClass, BlockSizes::kClasses> classes;
  std::array<PageNumber, kBins> bins;
  std::array<std::uint64_t, (kBins + 63) / 64> full_bins{};  // Bit b: bin b has a span.
  std::array<BlockTally, kTallies> spans;                    // Long blocks.
  std::array<BlockTally, kTallies> spare;                    // Free spans, the one freed last included.
  std::uint64_t live_bytes = 0;                              // For live blocks.
  // The long block freed last, in no bin and not joined with its neighbours: it is likely in the cache.
  PageNumber last_span = kNoPage;
  PageNumber last_pages = 0;

  State(std::byte* at, std::uint64_t count) noexcept : base(at), page_count(static_cast<PageNumber>(count)) {
    bins.fill(kNoPage);
    for (unsigned i = 0; i < classes.size(); ++i) {
      classes[i].bytes = static_cast<std::uint32_t>(BlockSizes::units_of(i) * BlockSizes::kUnit);
      classes[i].reciprocal = reciprocal_of(classes[i].bytes);
    }
  }

  // --- rings

  void put_into(PageNumber& ring, PageNumber at) noexcept {
    Page& page = pages[at];
    if (ring == kNoPage) {
      page.next = page.previous = at;
    } else {
      page.next = ring;
      page.previous = pages[ring].previous;
      pages[page.previous].next = at;
      pages[ring].previous = at;
    }
    ring = at;
  }

  void take_out(PageNumber& ring, PageNumber at) noexcept {
    const Page& page = pages[at];
    if (page.next == at) {
      ring = kNoPage;
      return;
    }
    pages[page.next].previous = page.previous;
    pages[page.previous].next = page.next;
    if (ring == at) ring = page.next;
  }

  // --- spans of pages

  void insert_span(PageNumber at, PageNumber count) noexcept {
    Page& last = pages[at + count - 1];
    last.kind = PageKind::kFree;
    last.head = at;
    Page& first = pages[at];
    first.kind = PageKind::kFree;
    first.head = at;
    first.pages = count;
    const unsigned bin = bin_of(count);
    put_into(bins[bin], at);
    full_bins[bin / 64] |= block_bit(bin % 64);
    spare[tally_of_span(count * kPageUnits)].add(std::uint64_t{count} << kPageShift);
  }

  /// Takes a free span out of its bin, and its marks away.
  PageNumber erase_span(PageNumber at) noexcept {
    const PageNumber count = pages[at].pages;
    const unsigned bin = bin_of(count);
    take_out(bins[bin], at);
    if (bins[bin] == kNoPage) full_bins[bin / 64] &= ~block_bit(bin % 64);
    spare[tally_of_span(count * kPageUnits)].remove(std::uint64_t{count} << kPageShift);
    pages[at].kind = PageKind::kInside;
    pages[at + count - 1].kind = PageKind::kInside;
    return count;
  }

  /// Makes pages without marks a free span, joined with its free neighbours.
  void give_pages(PageNumber at, PageNumber count) noexcept {
    if (at + count < page_count && pages[at + count].kind == PageKind::kFree) count += erase_span(at + count);
    if (at != 0 && pages[at - 1].kind == PageKind::kFree) {
      const PageNumber before = pages[at - 1].head;
      count += erase_span(before);
      at = before;
    }
    insert_span(at, count);
  }

  /// The shortest of the first spans of the bin that is long enough.
  [[nodiscard]] PageNumber best_of(unsigned bin, PageNumber count) const noexcept {
    PageNumber best = kNoPage;
    PageNumber at = bins[bin];
    for (unsigned looks = 0; at != kNoPage && looks < kMostLooks; ++looks) {
      const PageNumber length = pages[at].pages;
      if (length == count) return at;
      if (length > count && (best == kNoPage || length < pages[best].pages)) best = at;
      at = pages[at].next == bins[bin] ? kNoPage : pages[at].next;
    }
    return best;
  }

  [[nodiscard]] PageNumber find_span(PageNumber count) const noexcept {
    const unsigned bin = bin_of(count);
    if (const PageNumber found = best_of(bin, count); found != kNoPage) return found;
    // All spans of a higher bin are longer.
    for (unsigned from = bin + 1, word = from / 64; word < full_bins.size(); ++word, from = word * 64) {
      const std::uint64_t full = full_bins[word] >> (from % 64) << (from % 64);
      if (full != 0) return best_of(word * 64 + static_cast<unsigned>(std::countr_zero(full)), count);
    }
    return kNoPage;
  }

  enum class Side : bool { kFront, kEnd };
  /// Pages without marks, from that side of a free span.
  [[nodiscard]] PageNumber take_pages(PageNumber count, Side side) noexcept {
    const PageNumber found = find_span(count);
    if (found == kNoPage) return kNoPage;
    const PageNumber rest = erase_span(found) - count;
    if (rest == 0) return found;
    insert_span(side == Side::kFront ? found + count : found, rest);
    return side == Side::kFront ? found : found + rest;
  }

  void settle_span() noexcept {
    if (last_span == kNoPage) return;
    spare[tally_of_span(last_pages * kPageUnits)].remove(std::uint64_t{last_pages} << kPageShift);
    give_pages(std::exchange(last_span, kNoPage), last_pages);
  }

  [[nodiscard, gnu::noinline]] std::uint64_t take_span(PageNumber count) noexcept {
    PageNumber at = last_span;
    if (at != kNoPage && last_pages == count) {
      last_span = kNoPage;
      spare[tally_of_span(count * kPageUnits)].remove(std::uint64_t{count} << kPageShift);
    } else {
      settle_span();
      at = take_pages(count, Side::kEnd);
      if (at == kNoPage) {
        settle_blocks();
        at = take_pages(count, Side::kEnd);
      }
      if (at == kNoPage) return kNoOffset;
    }
    pages[at].kind = PageKind::kSpan;
    pages[at].pages = count;
    const std::uint64_t bytes = std::uint64_t{count} << kPageShift;
    spans[tally_of_block(count * kPageUnits)].add(bytes);
    live_bytes += bytes;
    return std::uint64_t{at} << kPageShift;
  }

  [[nodiscard, gnu::noinline]] Status free_span(std::uint64_t offset) noexcept {
    const auto at = static_cast<PageNumber>(offset >> kPageShift);
    if (pages[at].kind != PageKind::kSpan || offset % BlockSizes::kPage != 0) return Status::kBadArgument;
    const PageNumber count = pages[at].pages;
    const std::uint64_t bytes = std::uint64_t{count} << kPageShift;
    spans[tally_of_block(count * kPageUnits)].remove(bytes);
    live_bytes -= bytes;
    settle_span();
    pages[at].kind = PageKind::kInside;
    last_span = at;
    last_pages = count;
    spare[tally_of_span(count * kPageUnits)].add(bytes);
    return Status::kOk;
  }

  // --- slabs

  /// Makes a slab: of the length that leaves no remainder, unless there is no such span or the range is small.
  [[nodiscard]] bool make_slab(unsigned size_class) noexcept {
    SizeClass& of = classes[size_class];
    const auto least = static_cast<PageNumber>((of.bytes + BlockSizes::kPage - 1) >> kPageShift);
    const PageNumber share = std::max<PageNumber>(page_count / 64, least);
    PageNumber count = std::min<PageNumber>(static_cast<PageNumber>(pages_for(of.bytes >> kBlockUnitShift)), share);
    PageNumber at = take_pages(count, Side::kFront);
    while (at == kNoPage && count > least) {
      count = std::max(count / 2, least);
      at = take_pages(count, Side::kFront);
    }
    if (at == kNoPage) return false;
    for (PageNumber page = at; page < at + count; ++page) {
      pages[page].kind = PageKind::kSlab;
      pages[page].head = at;
    }
    Page& slab = pages[at];
    slab.pages = count;
    slab.size_class = static_cast<std::uint8_t>(size_class);
    slab.blocks = static_cast<std::uint8_t>(std::min(kMostBlocks, count * BlockSizes::kPage / of.bytes));
    slab.free = all_of(slab.blocks);
    slab.free_count = slab.blocks;
    of.blocks += slab.blocks;
    of.pages += count;
    enter_ring(at);
    return true;
  }

  /// A slab without live blocks, out of its ring, is pages again.
  void drop_slab(PageNumber at) noexcept {
    const Page& slab = pages[at];
    const PageNumber count = slab.pages;
    SizeClass& of = classes[slab.size_class];
    of.blocks -= slab.blocks;
    of.pages -= count;
    for (PageNumber page = at; page < at + count; ++page) pages[page].kind = PageKind::kInside;
    give_pages(at, count);
  }

  /// Into the ring of its level; a slab without free blocks into none.
  void enter_ring(PageNumber at) noexcept {
    Page& slab = pages[at];
    const unsigned level = slab.free_count == 0 ? kFull : level_of(slab);
    slab.level = static_cast<std::uint8_t>(level);
    // Those of a level have more than `level` quarters of their blocks free, and at most one more.
    slab.low = static_cast<std::uint8_t>(level == kFull ? 0 : level * slab.blocks / kLevels);
    slab.high = static_cast<std::uint8_t>(level == kFull         ? 0U
                                          : level == kLevels - 1 ? slab.blocks - 1U
                                                                 : (level + 1) * slab.blocks / kLevels);
    if (level == kFull) return;
    // Behind the others: by its turn it may have more free blocks, and changes rings less often.
    PageNumber& ring = classes[slab.size_class].slabs[level];
    put_into(ring, at);
    ring = slab.next;
  }
  void leave_ring(PageNumber at) noexcept {
    if (pages[at].level < kLevels) take_out(classes[pages[at].size_class].slabs[pages[at].level], at);
  }
  /// After the number of its free blocks has changed. kOk: whoever returns that ends with this call.
  [[gnu::noinline]] Status change_ring(PageNumber at) noexcept {
    leave_ring(at);
    if (pages[at].free_count == pages[at].blocks) {
      drop_slab(at);
    } else {
      enter_ring(at);
    }
    return Status::kOk;
  }

  [[nodiscard]] static std::uint64_t offset_of(const SizeClass& of, PageNumber at, std::uint64_t block) noexcept {
    return (std::uint64_t{at} << kPageShift) + block * of.bytes;
  }

  [[nodiscard]] std::uint64_t take_block(SizeClass& of) noexcept {
    for (const PageNumber at : of.slabs) {
      if (at == kNoPage) continue;
      Page& slab = pages[at];
      const std::uint64_t free = slab.free;
      slab.free = free & (free - 1);
      const auto left = static_cast<std::uint8_t>(slab.free_count - 1);
      slab.free_count = left;
      const auto block = static_cast<unsigned>(std::countr_zero(free));
      const std::uint64_t offset = offset_of(of, at, block);
      if (left <= slab.low) [[unlikely]]
        (void)change_ring(at);
      return offset;
    }
    return kNoOffset;
  }

  /// Gives a block back to its slab. kOk.
  [[gnu::always_inline]] Status put_back(Page* all, std::uint64_t place) noexcept {
    Page& slab = all[Place::slab_of(place)];
    slab.free |= std::uint64_t{1} << (place & 63);
    const auto free = static_cast<std::uint8_t>(slab.free_count + 1);
    slab.free_count = free;
    if (free > slab.high) [[unlikely]]
      return change_ring(Place::slab_of(place));
    return Status::kOk;
  }

  /// All blocks that were freed last go back, and slabs that they kept are pages.
  void settle_blocks() noexcept {
    for (SizeClass& of : classes) {
      const std::uint64_t last = std::exchange(of.last, Place::kNone);
      if (last != Place::kNone) (void)put_back(pages.get(), last);
    }
  }

  [[nodiscard]] std::uint64_t take_small(unsigned size_class) noexcept {
    SizeClass& of = classes[size_class];
    ++of.used;
    live_bytes += of.bytes;
    if (const std::uint64_t last = of.last; last != Place::kNone) {
      of.last = Place::kNone;
      return offset_of(of, Place::slab_of(last), Place::block_of(last));
    }
    const std::uint64_t offset = take_block(of);
    if (offset == kNoOffset) [[unlikely]]
      return take_new(size_class);
    return offset;
  }

  /// Out of a slab that is made for it.
  [[nodiscard, gnu::noinline]] std::uint64_t take_new(unsigned size_class) noexcept {
    if (!make_slab(size_class)) {
      settle_span();
      settle_blocks();
      if (!make_slab(size_class)) {
        --classes[size_class].used;
        live_bytes -= classes[size_class].bytes;
        return kNoOffset;
      }
    }
    return take_block(classes[size_class]);
  }

  /// Pages of the free span that a slab becomes with its neighbours.
  [[nodiscard]] PageNumber span_without(PageNumber at) const noexcept {
    const PageNumber end = at + pages[at].pages;
    PageNumber count = pages[at].pages;
    if (end < page_count && pages[end].kind == PageKind::kFree) count += pages[end].pages;
    if (at != 0 && pages[at - 1].kind == PageKind::kFree) count += pages[pages[at - 1].head].pages;
    return count;
  }

  /// For the first slabs of a ring, all about as empty as this one, the one that leaves the longest free span: so those
  /// who need a long one get it sooner.
  [[nodiscard]] PageNumber best_neighbour(PageNumber first) const noexcept {
    PageNumber best = first;
    PageNumber at = pages[first].next;
    for (unsigned looks = 1; at != first && looks < kMostLooks; ++looks, at = pages[at].next)
      if (pages[at].blocks <= pages[first].blocks && span_without(at) > span_without(best)) best = at;
    return best;
  }
};

std::size_t BlockPool::bookkeeping_bytes(std::size_t range_bytes) noexcept {
  return sizeof(State) + (range_bytes >> kPageShift) * sizeof(Page);
}

BlockPool::BlockPool(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
BlockPool::BlockPool(BlockPool&&) noexcept = default;
BlockPool& BlockPool::operator=(BlockPool&&) noexcept = default;
BlockPool::~BlockPool() = default;

Result<BlockPool> BlockPool::create(std::span<std::byte> range) {
  const std::uint64_t count = range.size() >> kPageShift;
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(range.data()) % BlockSizes::kUnit == 0;
  if (count == 0 || count > blocks::kMostPages || !is_aligned)
    return fail(Status::kBadArgument, "BlockPool::create", 0,
                "a block pool needs {} to {} bytes that start on a {}-byte boundary, and got {} bytes",
                BlockSizes::kPage, blocks::kMostPages << kPageShift, BlockSizes::kUnit, range.size());
  std::unique_ptr<State> state(new (std::nothrow) State(range.data(), count));
  // Zeroed here, so that no page of it faults later.
  if (state != nullptr) state->pages.reset(new (std::nothrow) Page[static_cast<std::size_t>(count)]());
  if (state == nullptr || state->pages == nullptr)
    return fail(Status::kNoMemory, "BlockPool::create", ENOMEM,
                "no memory for the bookkeeping of a block pool over {} bytes, which takes 1 % of them; free memory, or "
                "ask for less",
                range.size());
  state->insert_span(0, state->page_count);
  return BlockPool(std::move(state));
}

std::uint64_t BlockPool::allocate(std::size_t bytes) noexcept {
  State& state = *state_;
  const std::uint64_t units = (bytes + (BlockSizes::kUnit - 1)) >> kBlockUnitShift;
  // 0 bytes, and those that the sum overflows for, are 0 units.
  if (units - 1 < BlockSizes::kMostSlabUnits) [[likely]]
    return state.take_small(kClassOfUnits[static_cast<std::size_t>(units)]);
  const std::uint64_t pages = (units + (kPageUnits - 1)) / kPageUnits;
  if (units == 0 || pages > state.page_count) return kNoOffset;
  return state.take_span(static_cast<PageNumber>(pages));
}

Status BlockPool::free(std::uint64_t offset) noexcept {
  State& state = *state_;
  const std::uint64_t page = offset >> kPageShift;
  if (page >= state.page_count) [[unlikely]]
    return Status::kBadArgument;
  // Held here: stores to the bytes of a page might change the pointer, for all that the compiler knows.
  Page* const pages = state.pages.get();
  if (pages[page].kind != PageKind::kSlab) [[unlikely]]
    return state.free_span(offset);
  const PageNumber at = pages[page].head;
  const Page& slab = pages[at];
  SizeClass& of = state.classes[slab.size_class];
  const std::uint64_t inside = offset - (std::uint64_t{at} << kPageShift);
  const std::uint64_t block = block_at(of, inside);
  if (!is_live(of, slab, block, inside)) [[unlikely]]
    return Status::kBadArgument;
  const std::uint64_t last = Place::pack(at, block);
  const std::uint64_t before = of.last;
  if (before == last) [[unlikely]]
    return Status::kBadArgument;
  --of.used;
  state.live_bytes -= of.bytes;
  if (slab.level == kClosed) [[unlikely]]
    return state.put_back(pages, last);
  of.last = last;
  if (before == Place::kNone) return Status::kOk;
  return state.put_back(pages, before);
}

std::size_t BlockPool::block_bytes(std::uint64_t offset) const noexcept {
  const State& state = *state_;
  if (offset >> kPageShift >= state.page_count) return 0;
  const auto at = static_cast<PageNumber>(offset >> kPageShift);
  const Page& page = state.pages[at];
  if (page.kind == PageKind::kSpan)
    return offset % BlockSizes::kPage == 0 ? static_cast<std::size_t>(page.pages) << kPageShift : 0;
  if (page.kind != PageKind::kSlab) return 0;
  const Page& slab = state.pages[page.head];
  const SizeClass& of = state.classes[slab.size_class];
  const std::uint64_t inside = offset - (std::uint64_t{page.head} << kPageShift);
  const std::uint64_t block = block_at(of, inside);
  return is_live(of, slab, block, inside) && of.last != Place::pack(page.head, block) ? of.bytes : 0;
}

std::byte* BlockPool::at(std::uint64_t offset) const noexcept {
  VERBENA_DCHECK(offset < capacity_bytes());
  return state_->base + offset;
}

std::uint64_t BlockPool::offset_of(const void* address) const noexcept {
  const auto distance = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(state_->base);
  return distance < capacity_bytes() ? distance : kNoOffset;
}

std::size_t BlockPool::capacity_bytes() const noexcept {
  return static_cast<std::size_t>(state_->page_count) << kPageShift;
}

std::size_t BlockPool::used_bytes() const noexcept { return static_cast<std::size_t>(state_->live_bytes); }

unsigned BlockPool::classes() const noexcept { return tally_of_block(state_->page_count * kPageUnits) + 1; }

SlabClass BlockPool::class_of(unsigned index) const noexcept {
  VERBENA_DCHECK(index < classes());
  const State& state = *state_;
  SlabClass sum{.block_bytes = static_cast<std::size_t>(BlockSizes::kUnit) << index,
                .used = state.spans[index].blocks,
                .used_bytes = state.spans[index].bytes,
                .free = state.spare[index].blocks,
                .free_bytes = state.spare[index].bytes};
  for (const SizeClass& of : state.classes) {
    if (tally_of_block(of.bytes >> kBlockUnitShift) != index) continue;
    // Read one after the other, while the owner goes on: never less than nothing.
    const std::uint64_t used = of.used, blocks = of.blocks, bytes = of.pages << kPageShift;
    const std::uint64_t used_bytes = used * of.bytes;
    sum.used += used;
    sum.used_bytes += used_bytes;
    sum.free += blocks - std::min(blocks, used);
    sum.free_bytes += bytes - std::min(bytes, used_bytes);  // What is behind the last block of a slab included.
  }
  return sum;
}

std::optional<BlockPool::Clearing> BlockPool::begin_clearing(std::size_t most_block_bytes) noexcept {
  State& state = *state_;
  state.settle_blocks();
  PageNumber best = kNoPage;
  std::uint64_t most = 0;
  for (const SizeClass& of : state.classes) {
    if (of.bytes > most_block_bytes) break;
    const auto level = std::find_if(of.slabs.rbegin(), of.slabs.rend(), [](auto at) { return at != kNoPage; });
    if (level == of.slabs.rend()) continue;
    const Page& slab = state.pages[*level];
    const std::uint64_t free = of.blocks - of.used;
    // For the others as many as it has live ones.
    if (free < slab.blocks || free * of.bytes <= most) continue;
    most = free * of.bytes;
    best = *level;
  }
  if (best == kNoPage) return {};
  best = state.best_neighbour(best);
  Page& slab = state.pages[best];
  state.leave_ring(best);
  slab.level = kClosed;
  slab.high = slab.blocks;
  return Clearing{.offset = std::uint64_t{best} << kPageShift,
                  .block_bytes = state.classes[slab.size_class].bytes,
                  .live = ~slab.free & all_of(slab.blocks)};
}

bool BlockPool::end_clearing(const Clearing& clearing) noexcept {
  State& state = *state_;
  const auto at = static_cast<PageNumber>(clearing.offset >> kPageShift);
  Page& slab = state.pages[at];
  VERBENA_DCHECK(slab.level == kClosed);
  if (slab.free_count == slab.blocks) {
    state.drop_slab(at);
    return true;
  }
  state.enter_ring(at);  // Behind the others: the next one to be cleared is another.
  return false;
}

}  // namespace verbena::host
