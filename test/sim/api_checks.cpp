#include "api_checks.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace verbena::sim {

namespace {

std::byte byte_of(std::uint64_t name, std::size_t at) noexcept {
  std::uint64_t mixed = (name + 1) * 0x9E3779B97F4A7C15 + at * 0xD1B54A32D192ED03;
  mixed ^= mixed >> 29;
  return static_cast<std::byte>((mixed * 0xBF58476D1CE4E5B9) >> 56);
}

bool is_pattern(std::uint64_t name, std::size_t from, std::span<const std::byte> bytes) noexcept {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != byte_of(name, from + i)) return false;
  return true;
}

std::string words_of(const rdma::Message& message) {
  const char* const kind = message.kind == rdma::Message::Kind::kSent ? "a message" : "a write";
  return fmt::format("{} of {} bytes{}", kind, message.data.size(),
                     message.immediate ? fmt::format(" with {}", *message.immediate) : "");
}

}  // namespace

// --- messages -----------------------------------------------------------------------------------------------------

std::size_t Stream::begin(const Note& note) {
  notes_.push_back(note);
  return notes_.size() - 1;
}

void Stream::fill(std::size_t place, std::span<std::byte> bytes) const {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_of(number_ << 32 | place, i);
}

std::string Stream::end(std::size_t place, Status status) {
  Note& note = notes_[place];
  if (status == Status::kOk) {
    note.state = State::kAccepted;
  } else if (damage_of(status) >= Damage::kConnection) {
    note.state = State::kUnknown;
  } else {
    note.state = State::kGivenUp;
    if (note.is_taken) return fmt::format("message {} has arrived, and its call returned {}", place, to_string(status));
  }
  return {};
}

bool Stream::is(std::size_t place, const rdma::Message& message, std::span<const std::byte> window) const {
  const Note& note = notes_[place];
  if (note.kind != message.kind || note.immediate != message.immediate || note.length != message.data.size())
    return false;
  if (note.kind == rdma::Message::Kind::kWritten)
    return note.length == 0 || message.data.data() == window.data() + note.offset;
  return is_pattern(number_ << 32 | place, 0, message.data);
}

const Stream::Note* Stream::take(const rdma::Message& message, std::span<const std::byte> window, std::string& wrong) {
  for (std::size_t place = next_; place < notes_.size(); ++place) {
    Note& note = notes_[place];
    if (note.state == State::kGivenUp) continue;
    if (is(place, message, window)) {
      note.is_taken = true;
      next_ = place + 1;
      ++taken_;
      return &note;
    }
    wrong =
        fmt::format("{} arrives where message {} of {} bytes is the next one", words_of(message), place, note.length);
    return nullptr;
  }
  wrong = fmt::format("{} arrives, and nobody sent one", words_of(message));
  return nullptr;
}

bool Stream::may_be_next(std::size_t length) const {
  // The front of one that was given up may be there.
  for (std::size_t place = next_; place < notes_.size(); ++place) {
    if (notes_[place].length == length) return true;
    if (notes_[place].state != State::kGivenUp) return false;
  }
  return false;
}

std::string Stream::missing() const {
  for (std::size_t place = next_; place < notes_.size(); ++place)
    if (notes_[place].state == State::kAccepted)
      return fmt::format("message {} of {} bytes was accepted, and the end came before it", place,
                         notes_[place].length);
  return {};
}

std::string Stream::check_count(std::uint64_t dropped, bool is_whole) const {
  const auto count = [this](State state) {
    return static_cast<std::uint64_t>(std::ranges::count(notes_, state, &Note::state));
  };
  const std::uint64_t least = is_whole ? count(State::kAccepted) : 0;
  const std::uint64_t most = notes_.size() - count(State::kGivenUp);
  if (dropped >= least && dropped <= most) return {};
  return fmt::format("{} messages are counted as dropped, and there were {} to {}", dropped, least, most);
}

std::vector<Part> parts_of_physical(std::size_t offset, std::size_t length) {
  std::vector<Part> parts;
  while (length != 0) {
    const std::size_t bytes = std::min(length, kPage - offset % kPage);
    parts.push_back({.offset = offset ^ kPage, .length = bytes});
    offset += bytes;
    length -= bytes;
  }
  return parts;
}

// --- bytes --------------------------------------------------------------------------------------------------------

std::uint64_t Region::begin_write(std::size_t offset, std::size_t length, std::uint64_t link) {
  forget_old();
  writes_.push_back({.number = ++clock_, .offset = offset, .end_offset = offset + length, .link = link});
  return clock_;
}

const Region::Write& Region::find(std::uint64_t number) const {
  return *std::ranges::find(writes_, number, &Write::number);
}

void Region::fill(std::uint64_t write, std::span<std::byte> bytes) const {
  const Write& what = find(write);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_of(write, what.offset + i);
}

void Region::accept_write(std::uint64_t write) {
  const auto what = std::ranges::find(writes_, write, &Write::number);
  if (what != writes_.end()) what->accepted = ++clock_;  // Else it was there before, and is over.
}

void Region::end_write(std::uint64_t write, bool is_there) {
  Write& what = *std::ranges::find(writes_, write, &Write::number);
  what.end = ++clock_;
  what.is_there = is_there;
}

void Region::write_here(std::size_t offset, std::size_t length) {
  const std::uint64_t write = begin_write(offset, length, 0);
  fill(write, memory_.subspan(offset, length));
  end_write(write, true);
}

/// Whether `other`, which is there, has come after `write`. One connection keeps its order; of two nobody knows when
/// what one of them had under way comes.
bool Region::is_before(const Write& write, const Write& other) noexcept {
  if (write.link == other.link) return write.number < other.number;
  return write.is_there && write.end != 0 && write.end < other.number;
}

std::string Region::end_read(std::uint64_t read, std::size_t offset, std::span<const std::byte> bytes,
                             std::uint64_t link) {
  reads_.erase(read);
  std::vector<const Write*> near;
  std::set<std::size_t> borders{offset, offset + bytes.size()};
  for (const Write& write : writes_) {
    if (write.end_offset <= offset || write.offset >= offset + bytes.size()) continue;
    near.push_back(&write);
    for (const std::size_t border : {write.offset, write.end_offset})
      if (border > offset && border < offset + bytes.size()) borders.insert(border);
  }
  for (auto border = borders.begin(); std::next(border) != borders.end(); ++border) {
    const std::size_t length = *std::next(border) - *border;
    const std::string wrong = check_part({read, link}, near, *border, bytes.subspan(*border - offset, length));
    if (!wrong.empty()) return wrong;
  }
  return {};
}

/// Bytes that the same writes have changed.
std::string Region::check_part(const Read& read, std::span<const Write* const> near, std::size_t offset,
                               std::span<const std::byte> bytes) {
  std::vector<const Write*> all, possible;
  for (const Write* write : near)
    if (write->offset <= offset && write->end_offset > offset) all.push_back(write);
  const auto was_there = [&](const Write* write) { return read.has_to_see(*write); };
  for (const Write* write : all)
    if (std::ranges::none_of(
            all, [&](const Write* other) { return other != write && was_there(other) && is_before(*write, *other); }))
      possible.push_back(write);
  const bool may_be_zero = std::ranges::none_of(all, was_there);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto is_of = [&](const Write* write) { return bytes[i] == byte_of(write->number, offset + i); };
    if ((may_be_zero && bytes[i] == std::byte{0}) || std::ranges::any_of(possible, is_of)) continue;
    return fmt::format("byte {} is {:#x}, and can be of {} writes, the last of which is {}", offset + i,
                       static_cast<unsigned>(bytes[i]), possible.size(),
                       possible.empty() ? 0 : possible.back()->number);
  }
  return {};
}

/// A write that is wholly under a later one is of no use to a read that has not begun.
void Region::forget_old() {
  if (!reads_.empty()) return;
  std::vector<Write> kept;
  for (const Write& write : writes_) {
    const bool is_over = write.end != 0 && std::ranges::any_of(writes_, [&](const Write& other) {
                           return other.is_there && &other != &write && other.offset <= write.offset &&
                                  other.end_offset >= write.end_offset && is_before(write, other);
                         });
    if (!is_over) kept.push_back(write);
  }
  writes_.swap(kept);
}

// --- words --------------------------------------------------------------------------------------------------------

std::string Sum::end(const Add& add, std::uint64_t old) {
  there_ += add.delta;
  unknown_.erase(unknown_.find(add.delta));
  if (old < add.least || old + add.delta > begun_)
    return fmt::format("an add of {} found {}, and has to find {} to {}", add.delta, old, add.least,
                       begun_ - add.delta);
  if (!olds_.insert(old).second) return fmt::format("two adds found {}", old);
  return {};
}

std::string Sum::check(std::uint64_t value) const {
  std::set<std::uint64_t> sums{there_};
  for (const std::uint64_t delta : unknown_) {
    std::vector<std::uint64_t> more;
    for (const std::uint64_t sum : sums)
      if (sum + delta <= value) more.push_back(sum + delta);
    sums.insert(more.begin(), more.end());
  }
  if (sums.contains(value)) return {};
  return fmt::format("the sum is {}: of adds that returned it is {}, and {} others do not make up for it", value,
                     there_, unknown_.size());
}

std::string Swaps::end(std::uint64_t expected, std::uint64_t desired, std::uint64_t old) {
  if (!is_known(old)) return fmt::format("a swap found {}, which nobody put there", old);
  if (old != expected) {
    begun_.erase(desired);
    return {};
  }
  if (!used_.insert(expected).second) return fmt::format("two swaps have found {}", expected);
  return {};
}

std::string Swaps::check(std::uint64_t value) const {
  if (!is_known(value)) return fmt::format("{} is there, which nobody put there", value);
  if (used_.contains(value)) return fmt::format("{} is there, which was exchanged for another value", value);
  return {};
}

}  // namespace verbena::sim
