#include "remote/remote.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/limit.hpp"
#include "nic/verbs.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace verbena::remote {

using engine::wr::kNoSlot;

namespace {

/// Of links without a handler, or whose handler is gone.
class Nobody final : public Handler {};
Nobody nobody;

[[nodiscard]] std::uint32_t fitting_bounce_bytes(const LinkOptions& options, const nic::Limits& limits) noexcept {
  return std::min(options.bounce_bytes, limits.max_message / 64 * 64);
}

/// One blocking operation is posted at a time, those in quarantine are still there, and so is what was started.
std::uint32_t sends_of(const LinkOptions& options) noexcept {
  constexpr std::uint32_t kLeast = 64;
  return std::max(kLeast, options.bounce_buffers + 1 + options.max_operations);
}

}  // namespace

std::uint32_t completions_needed(const LinkOptions& options) noexcept {
  return engine::Connection::completions_needed(sends_of(options), options.receives);
}

Result<std::unique_ptr<Link>> Link::create(engine::CompletionLoop& loop, ibv_pd* pd, const LinkOptions& options) {
  constexpr const char* kCall = "remote::Link::create";
  if (options.bounce_bytes < 64 || options.bounce_bytes > (16u << 20) || options.bounce_bytes % 64 != 0)
    return verbena::fail(Status::kBadArgument, kCall, 0,
                         "bounce_bytes must be a multiple of 64, 64 to 16777216; got {}", options.bounce_bytes);
  VERBENA_TRY(check_limit(kCall, "bounce_buffers", options.bounce_buffers, 1, 1024));
  VERBENA_TRY(check_limit(kCall, "max_operations", options.max_operations, 1, 8192));
  VERBENA_TRY(check_limit(kCall, "max_reads", options.max_reads, 1, 8192));
  VERBENA_TRY(check_limit(kCall, "receives", options.receives, 0, 4096));
  if (options.receives != 0 && options.handler == nullptr)
    return verbena::fail(Status::kBadArgument, kCall, 0,
                         "receives are for immediates, and there is no handler to be told of them");
  LinkOptions fitting = options;
  fitting.bounce_bytes = fitting_bounce_bytes(options, loop.nic().limits());
  std::unique_ptr<Link> made(new Link(loop, fitting));
  VERBENA_TRY(made->create(pd));
  return made;
}

Link::Link(engine::CompletionLoop& loop, const LinkOptions& options)
    : Connection(loop),
      options_(options),
      in_flight_(options.bounce_buffers),
      handler_(options.handler != nullptr ? options.handler : &nobody),
      ring_(ring_entries(options)),
      receive_requests_(options.receives),
      max_message_(loop.nic().limits().max_message) {
  for (std::size_t i = 0; i < receive_requests_.size(); ++i)
    receive_requests_[i] = {.wr_id = engine::wr::kReceiveBit,
                            .next = i + 1 < receive_requests_.size() ? &receive_requests_[i + 1] : nullptr,
                            .sg_list = nullptr,
                            .num_sge = 0};

  transfer_.sg_list = &sge_;
  transfer_.num_sge = 1;
  atomic_.sg_list = &atomic_sge_;
  atomic_.num_sge = 1;
}

Link::~Link() {
  handler_ = &nobody;
  shut();
  on_drained();
}

void Link::mute() noexcept {
  handler_ = &nobody;
  begin_failure(Status::kClosed);
}

engine::QueueOptions Link::queues_needed(const LinkOptions& options) noexcept {
  return {.sends = sends_of(options), .receives = options.receives, .send_sge = 1, .max_inline = options.max_inline};
}

std::size_t Link::ring_entries(const LinkOptions& options) noexcept { return std::bit_ceil(options.max_operations); }

std::size_t Link::arena_bytes(const LinkOptions& options) noexcept {
  return std::size_t{options.bounce_bytes} * options.bounce_buffers  // one a blocking operation
         + ring_entries(options) * sizeof(std::uint64_t);            // what started atomics find
}

host::Footprint Link::footprint(nic::Kind kind, const nic::Limits& limits, const LinkOptions& wished) {
  LinkOptions options = wished;
  options.bounce_bytes = fitting_bounce_bytes(options, limits);
  host::Footprint pools;
  pools.add({.name = "bounce buffers and results",
             .kind = host::PoolKind::kRegistered,
             .bytes_each = arena_bytes(options),
             .node = options.node});
  pools.add({.name = "link", .bytes_each = sizeof(Link)});
  pools.add(
      {.name = "operations in flight", .count = options.bounce_buffers, .bytes_each = engine::InFlight::bytes_for(1)});
  pools.add({.name = "operations started", .count = ring_entries(options), .bytes_each = sizeof(Started)});
  if (options.receives != 0)
    pools.add({.name = "receive requests", .count = options.receives, .bytes_each = sizeof(ibv_recv_wr)});
  pools.add("connection", 1, engine::Connection::footprint(kind, limits, queues_needed(options)));
  return pools;
}

Result<void> Link::create(ibv_pd* pd) {
  VERBENA_TRY(open(pd, queues_needed(options_)));
  const nic::DeviceFacts* facts = nic::facts_of(nic());
  has_atomics_ = facts == nullptr || facts->atomics != IBV_ATOMIC_NONE;
  VERBENA_TRY(memory_.open(nic(), pd, {.size_bytes = arena_bytes(options_), .node = options_.node, .name = "bounce"},
                           {}, IBV_ACCESS_LOCAL_WRITE));
  results_ = bounce(options_.bounce_buffers);
  return {};
}

Result<link::Endpoint> Link::local_endpoint(std::span<const std::byte> user_data) {
  // Its packet number and generation are random: described once.
  if (!endpoint_) endpoint_ = link::describe(nic(), qp(), options_.receives);
  if (endpoint_->set_user_data(user_data) != Status::kOk)
    return verbena::fail(Status::kTooLong, "remote::Link::local_endpoint", 0, "{} bytes of user data; {} fit",
                         user_data.size(), link::kMaxPrivateBytes);
  return *endpoint_;
}

Result<void> Link::connect(const link::Endpoint& local, const link::Endpoint& remote, Deadline deadline,
                           const link::BringUp& how) {
  max_reads_ = std::min<std::uint32_t>({options_.max_reads, local.qp.max_rd_atomic, remote.qp.max_rd_atomic});
  VERBENA_TRY(link::bring_up(nic(), qp(), local, remote, how, deadline));
  connected_ = true;
  attach();
  return {};
}

std::unexpected<Error> Link::gone(const char* call) const noexcept {
  return verbena::fail(reason() != Status::kOk ? reason() : Status::kClosed, call, 0,
                       "the link has failed, and its queue pair is destroyed: connect a new one");
}

Result<void> Link::import_window(const nic::Window& window, Deadline deadline) {
  if (qp() == nullptr) return gone("remote::Link::import_window");
  VERBENA_TRY(nic().import_window(qp(), window, deadline));
  const Status added = windows_.add(window);
  if (added == Status::kOk) return {};
  (void)nic().release_window(qp(), window);
  return verbena::fail(
      added, "remote::Link::import_window", 0, "{}",
      added == Status::kLimit ? "a link imports at most 64 windows" : "the window wraps around the address space");
}

Result<void> Link::release_window(const nic::Window& window) {
  if (qp() == nullptr) return gone("remote::Link::release_window");
  if (windows_.remove(window) != Status::kOk)
    return verbena::fail(Status::kNotFound, "remote::Link::release_window", 0, "the window is not imported");
  return nic().release_window(qp(), window);
}

Status Link::check(const RemoteSpan& span, std::uint32_t access) noexcept {
  if (reason() != Status::kOk) [[unlikely]]
    return reason();
  if (!connected_) [[unlikely]]
    return Status::kBadArgument;
  return windows_.check(span, access);
}

// Everything of one work request in one function: each call of a function more would be ten instructions.
inline Status Link::transfer_piece(ibv_wr_opcode opcode, std::byte* local, std::uint32_t lkey, std::uint32_t bytes,
                                   std::uint64_t remote, std::uint32_t rkey, Deadline deadline) noexcept {
  if (const nic::Direct* const now = direct(); now != nullptr) {
    const auto move = opcode == IBV_WR_RDMA_READ ? now->read : now->write;
    if (move(qp(), local, lkey, bytes, remote, rkey)) [[likely]] {
      went_directly(bytes);
      return Status::kOk;
    }
  }
  if (send_room() == 0 || loop().in_handler()) [[unlikely]]
    if (const Status room = wait_for_room(deadline); room != Status::kOk) return room;
  sge_ = {.addr = reinterpret_cast<std::uintptr_t>(local), .length = bytes, .lkey = lkey};
  transfer_.opcode = opcode;
  transfer_.wr.rdma.remote_addr = remote;
  transfer_.wr.rdma.rkey = rkey;
  // What is inline is copied by the post: the caller's memory is free, and nothing needs to be drained.
  const bool is_inline = opcode == IBV_WR_RDMA_WRITE && bytes <= max_inline();
  transfer_.send_flags = is_inline ? IBV_SEND_INLINE : 0;
  if (is_inline) ++count().inline_sends;
  count().bytes += bytes;
  if (!post(transfer_, engine::wr::kNoTag, Signal::kAlways)) [[unlikely]]
    return reason();
  // No slot in flight: there is nothing of ours that it touches. It is over when its position is retired.
  const std::uint32_t mine = position();
  {
    const engine::CompletionLoop::Blocked blocked(loop());
    loop().poll();
  }
  if (is_retired(mine) && reason() == Status::kOk) [[likely]]
    return Status::kOk;
  return wait_for_position(mine, is_inline ? Memory::kOurs : Memory::kCallers, deadline);
}

Status Link::read(LocalSpan to, RemoteSpan from, Deadline deadline) noexcept {
  if (to.length < from.length) [[unlikely]]
    return Status::kBadArgument;
  if (const Status checked = check(from, IBV_ACCESS_REMOTE_READ); checked != Status::kOk) [[unlikely]]
    return checked;
  if (from.length - 1 >= max_message_) [[unlikely]]
    return transfer(IBV_WR_RDMA_READ, to, from, deadline);
  return transfer_piece(IBV_WR_RDMA_READ, to.data, to.lkey, static_cast<std::uint32_t>(from.length), from.address,
                        from.rkey, deadline);
}

Status Link::write(LocalSpan from, RemoteSpan to, Deadline deadline) noexcept {
  if (to.length < from.length) [[unlikely]]
    return Status::kBadArgument;
  to.length = from.length;
  if (const Status checked = check(to, IBV_ACCESS_REMOTE_WRITE); checked != Status::kOk) [[unlikely]]
    return checked;
  if (to.length - 1 >= max_message_) [[unlikely]]
    return transfer(IBV_WR_RDMA_WRITE, from, to, deadline);
  return transfer_piece(IBV_WR_RDMA_WRITE, from.data, from.lkey, static_cast<std::uint32_t>(to.length), to.address,
                        to.rkey, deadline);
}

Status Link::transfer(ibv_wr_opcode opcode, LocalSpan local, RemoteSpan remote, Deadline deadline) noexcept {
  for (std::uint64_t done = 0; done < remote.length;) {
    // The poll behind a piece that went directly may have seen the end.
    if (reason() != Status::kOk) return reason();
    const auto bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(remote.length - done, max_message_));
    const Status status =
        transfer_piece(opcode, local.data + done, local.lkey, bytes, remote.address + done, remote.rkey, deadline);
    if (status != Status::kOk) return status;
    done += bytes;
  }
  return Status::kOk;
}

Status Link::wait_for_room(Deadline deadline) noexcept {
  if (loop().in_handler()) return Status::kBadArgument;
  const Status waited = loop().wait_until([this] { return send_room() != 0 || reason() != Status::kOk; }, deadline);
  return reason() != Status::kOk ? reason() : waited;
}

Status Link::wait_for_position(std::uint32_t position, Memory memory, Deadline deadline) noexcept {
  const auto is_over = [this, position] { return is_retired(position) || reason() != Status::kOk; };
  const Status waited = loop().wait_until(is_over, deadline);
  if (waited == Status::kOk && reason() == Status::kOk) return Status::kOk;
  if (memory == Memory::kCallers) drain_now();
  return waited == Status::kTimedOut ? waited : reason();
}

Status Link::read(std::span<std::byte> to, RemoteSpan from, Deadline deadline) noexcept {
  if (to.size() < from.length) return Status::kBadArgument;
  if (const Status checked = check(from, IBV_ACCESS_REMOTE_READ); checked != Status::kOk) return checked;
  for (std::uint64_t done = 0; done < from.length;) {
    const auto bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(from.length - done, options_.bounce_bytes));
    if (const nic::Direct* const now = direct(); now != nullptr) {
      if (now->read_plain(qp(), to.data() + done, 0, bytes, from.address + done, from.rkey)) [[likely]] {
        went_directly(bytes);
        done += bytes;
        continue;
      }
    }
    std::uint32_t slot = kNoSlot;
    if (const Status taken = take_slot(slot, deadline); taken != Status::kOk) return taken;
    // After the last wait: a handler that was called meanwhile may have posted by the same request.
    sge_ = {.addr = reinterpret_cast<std::uintptr_t>(bounce(slot)), .length = bytes, .lkey = memory_.lkey()};
    transfer_.opcode = IBV_WR_RDMA_READ;
    transfer_.send_flags = 0;
    transfer_.wr.rdma.rkey = from.rkey;
    transfer_.wr.rdma.remote_addr = from.address + done;
    count().bytes += bytes;
    if (const Status status = run(transfer_, slot, deadline); status != Status::kOk) return status;
    // The slot is free again, but only this thread could take it.
    std::memcpy(to.data() + done, bounce(slot), bytes);
    done += bytes;
  }
  return Status::kOk;
}

Status Link::write(std::span<const std::byte> from, RemoteSpan to, Deadline deadline) noexcept {
  if (to.length < from.size()) return Status::kBadArgument;
  to.length = from.size();
  if (const Status checked = check(to, IBV_ACCESS_REMOTE_WRITE); checked != Status::kOk) return checked;
  for (std::size_t done = 0; done < from.size();) {
    const auto bytes = static_cast<std::uint32_t>(std::min<std::size_t>(from.size() - done, options_.bounce_bytes));
    if (const nic::Direct* const now = direct(); now != nullptr) {
      auto* const local = const_cast<std::byte*>(from.data() + done);  // Is only read.
      if (now->write_plain(qp(), local, 0, bytes, to.address + done, to.rkey)) [[likely]] {
        went_directly(bytes);
        done += bytes;
        continue;
      }
    }
    std::uint32_t slot = kNoSlot;
    if (const Status taken = take_slot(slot, deadline); taken != Status::kOk) return taken;
    const bool is_inline = bytes <= max_inline();
    if (!is_inline) std::memcpy(bounce(slot), from.data() + done, bytes);
    const void* source = is_inline ? from.data() + done : bounce(slot);
    sge_ = {.addr = reinterpret_cast<std::uintptr_t>(source), .length = bytes, .lkey = memory_.lkey()};
    transfer_.opcode = IBV_WR_RDMA_WRITE;
    transfer_.send_flags = is_inline ? IBV_SEND_INLINE : 0;
    transfer_.wr.rdma.rkey = to.rkey;
    transfer_.wr.rdma.remote_addr = to.address + done;
    count().inline_sends += is_inline ? 1 : 0;
    count().bytes += bytes;
    if (const Status status = run(transfer_, slot, deadline); status != Status::kOk) return status;
    done += bytes;
  }
  return Status::kOk;
}

Status Link::fetch_add(RemoteWord word, std::uint64_t delta, std::uint64_t& old, Deadline deadline) noexcept {
  return atomic({.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .compare_add = delta}, word, old, deadline);
}

Status Link::compare_swap(RemoteWord word, std::uint64_t expected, std::uint64_t desired, std::uint64_t& old,
                          Deadline deadline) noexcept {
  return atomic({.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .compare_add = expected, .swap = desired}, word, old, deadline);
}

Status Link::check_word(RemoteWord word) noexcept {
  if (word.address % sizeof(std::uint64_t) != 0) return Status::kBadArgument;
  if (!has_atomics_) return Status::kUnsupported;
  return check({.address = word.address, .length = sizeof(std::uint64_t), .rkey = word.rkey}, IBV_ACCESS_REMOTE_ATOMIC);
}

// The one request that both kinds are posted by.
ibv_send_wr& Link::prepare(const Change& change, RemoteWord word, std::byte* result) noexcept {
  atomic_sge_ = {
      .addr = reinterpret_cast<std::uintptr_t>(result), .length = sizeof(std::uint64_t), .lkey = memory_.lkey()};
  atomic_.opcode = change.opcode;
  atomic_.send_flags = 0;
  atomic_.wr.atomic.remote_addr = word.address;
  atomic_.wr.atomic.rkey = word.rkey;
  atomic_.wr.atomic.compare_add = change.compare_add;
  atomic_.wr.atomic.swap = change.swap;
  count().bytes += sizeof(std::uint64_t);
  return atomic_;
}

Status Link::atomic(const Change& change, RemoteWord word, std::uint64_t& old, Deadline deadline) noexcept {
  if (const Status checked = check_word(word); checked != Status::kOk) return checked;
  if (const nic::Direct* const now = direct(); now != nullptr) {
    if (now->atomic(qp(), change.opcode, change.compare_add, change.swap, word.address, word.rkey, old)) [[likely]] {
      went_directly(sizeof old);
      return Status::kOk;
    }
  }
  std::uint32_t slot = kNoSlot;
  if (const Status taken = take_slot(slot, deadline); taken != Status::kOk) return taken;
  const Status status = run(prepare(change, word, bounce(slot)), slot, deadline);
  if (status == Status::kOk) std::memcpy(&old, bounce(slot), sizeof old);
  return status;
}

// --- started operations -------------------------------------------------------------------------------------------

Status Link::room_for(std::uint64_t pieces, bool is_read) const noexcept {
  if (pieces > send_room()) return pieces > send_slots() - kReserve ? Status::kTooLong : Status::kAgain;
  if (started_ - taken_ >= options_.max_operations) return Status::kAgain;
  if (!is_read || reads_out_ < max_reads_) [[likely]]
    return Status::kOk;
  return max_reads_ == 0 ? Status::kUnsupported : Status::kAgain;
}

void Link::note_started(std::uint64_t token, bool is_read, bool is_atomic) noexcept {
  started(started_) = {.token = token, .position = position(), .is_read = is_read, .is_atomic = is_atomic};
  ++started_;
  reads_out_ += is_read ? 1 : 0;
}

Status Link::start_read(LocalSpan to, RemoteSpan from, std::uint64_t token) noexcept {
  if (to.length < from.length) return Status::kBadArgument;
  if (const Status checked = check(from, IBV_ACCESS_REMOTE_READ); checked != Status::kOk) return checked;
  transfer_.opcode = IBV_WR_RDMA_READ;
  return start_transfer(transfer_, to, from, token);
}

Status Link::start_write(LocalSpan from, RemoteSpan to, std::uint64_t token) noexcept {
  if (to.length < from.length) return Status::kBadArgument;
  to.length = from.length;
  if (const Status checked = check(to, IBV_ACCESS_REMOTE_WRITE); checked != Status::kOk) return checked;
  transfer_.opcode = IBV_WR_RDMA_WRITE;
  return start_transfer(transfer_, from, to, token);
}

Status Link::start_write_imm(LocalSpan from, RemoteSpan to, std::uint32_t immediate, std::uint64_t token) noexcept {
  if (to.length < from.length) return Status::kBadArgument;
  // Its bytes and its immediate are one work request.
  if (from.length > max_message_) return Status::kTooLong;
  to.length = from.length;
  if (const Status checked = check(to, IBV_ACCESS_REMOTE_WRITE); checked != Status::kOk) return checked;
  transfer_.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  transfer_.imm_data = htonl(immediate);
  return start_transfer(transfer_, from, to, token);
}

Status Link::start_transfer(ibv_send_wr& request, LocalSpan local, RemoteSpan remote, std::uint64_t token) noexcept {
  const bool is_read = request.opcode == IBV_WR_RDMA_READ;
  const std::uint64_t most = max_message_;
  const std::uint64_t pieces = remote.length <= most ? 1 : (remote.length + most - 1) / most;
  if (const Status room = room_for(pieces, is_read); room != Status::kOk) return room;
  request.wr.rdma.rkey = remote.rkey;
  std::uint64_t done = 0;
  do {
    const auto bytes = static_cast<std::uint32_t>(std::min(remote.length - done, most));
    sge_ = {.addr = reinterpret_cast<std::uintptr_t>(local.data + done), .length = bytes, .lkey = local.lkey};
    request.wr.rdma.remote_addr = remote.address + done;
    const bool is_inline = !is_read && bytes <= max_inline();
    request.send_flags = is_inline ? IBV_SEND_INLINE : 0;
    count().inline_sends += is_inline ? 1 : 0;
    if (!post(request, engine::wr::kNoTag, Signal::kWithDoorbell)) [[unlikely]] {
      if (done == 0) return reason();
      break;  // It was started in part, and its completion says how that ended.
    }
    done += bytes;
  } while (done < remote.length);
  count().bytes += done;
  note_started(token, is_read, false);
  return Status::kOk;
}

Status Link::start_fetch_add(RemoteWord word, std::uint64_t delta, std::uint64_t token) noexcept {
  return start_atomic({.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .compare_add = delta}, word, token);
}

Status Link::start_compare_swap(RemoteWord word, std::uint64_t expected, std::uint64_t desired,
                                std::uint64_t token) noexcept {
  return start_atomic({.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .compare_add = expected, .swap = desired}, word, token);
}

Status Link::start_atomic(const Change& change, RemoteWord word, std::uint64_t token) noexcept {
  if (const Status checked = check_word(word); checked != Status::kOk) return checked;
  if (const Status room = room_for(1, true); room != Status::kOk) return room;
  if (!post(prepare(change, word, result_of(started_)), engine::wr::kNoTag, Signal::kWithDoorbell)) return reason();
  note_started(token, true, true);
  return Status::kOk;
}

void Link::complete_oldest(Status status) noexcept {
  const std::uint32_t number = completed_;
  Started& oldest = started(number);
  oldest.status = status;
  if (oldest.is_atomic && status == Status::kOk) std::memcpy(&oldest.old, result_of(number), sizeof oldest.old);
  reads_out_ -= oldest.is_read ? 1 : 0;
  ++completed_;
  if (options_.handler == nullptr) return;
  const Completion completion{.token = oldest.token, .status = status, .old = oldest.old};
  taken_ = completed_;
  handler_->on_complete(*this, completion);
}

// Completions of one send queue come in the order of its requests: one stands for all before it.
void Link::complete_started(std::uint32_t position) noexcept {
  while (completed_ != started_ && static_cast<std::int32_t>(position - started(completed_).position) >= 0)
    complete_oldest(Status::kOk);
}

std::size_t Link::take(std::span<Completion> into) noexcept {
  std::size_t count = 0;
  for (; count < into.size() && taken_ != completed_; ++taken_) {
    const Started& done = started(taken_);
    into[count++] = {.token = done.token, .status = done.status, .old = done.old};
  }
  return count;
}

// --- blocking operations ------------------------------------------------------------------------------------------

Status Link::take_slot(std::uint32_t& slot, Deadline deadline) noexcept {
  if (loop().in_handler()) [[unlikely]]
    return Status::kBadArgument;
  // The poll behind a piece that went directly may have seen the end.
  if (reason() != Status::kOk) [[unlikely]]
    return reason();
  slot = in_flight_.begin();
  if (slot != kNoSlot) [[likely]]
    return Status::kOk;
  const Status waited = loop().wait_until(
      [this] { return in_flight_.count() < in_flight_.capacity() || reason() != Status::kOk; }, deadline);
  if (reason() != Status::kOk) return reason();
  if (waited == Status::kOk) slot = in_flight_.begin();
  return waited;
}

Status Link::run(ibv_send_wr& request, std::uint32_t slot, Deadline deadline) noexcept {
  if (!post(request, in_flight_.tag(slot), Signal::kAlways)) [[unlikely]] {
    in_flight_.end(slot);
    return reason();
  }
  waiting_ = slot;
  const Status waited = loop().wait_until([this] { return waiting_ == kNoSlot || reason() != Status::kOk; }, deadline);
  if (waiting_ == kNoSlot && reason() == Status::kOk) [[likely]]
    return Status::kOk;
  // Unless the link has died and been drained meanwhile: then the slot is free already.
  if (!is_drained()) ++count().quarantined;
  waiting_ = kNoSlot;
  return waited == Status::kTimedOut ? waited : reason();
}

// The caller's memory is its own again when this returns. Bounded: a drain has its own deadline, after which the QP is
// destroyed.
void Link::drain_now() noexcept {
  begin_failure(Status::kTimedOut);
  (void)loop().wait_until([this] { return is_drained(); }, Deadline::never());
}

void Link::on_attached() noexcept {
  if (!receive_requests_.empty() && reason() == Status::kOk)
    (void)post_receives(receive_requests_[0], options_.receives);
}

void Link::handle(std::span<const ibv_wc> completions) noexcept {
  // What the handler starts goes out together.
  const bool is_batch = completions.size() > 1 && loop().batches();
  if (is_batch) hold();
  for (const ibv_wc& completion : completions) {
    if (completion.status != IBV_WC_SUCCESS || reason() != Status::kOk) [[unlikely]] {
      on_failed(completion);
    } else if (engine::wr::is_receive(completion.wr_id)) {
      on_receive(completion);
    } else {
      retire(completion.wr_id);
      if (completed_ != started_) complete_started(engine::wr::position_of(completion.wr_id));
      if (engine::wr::slot_of(completion.wr_id) != kNoSlot) complete(completion.wr_id);
    }
  }
  if (is_batch) release();
}

// Requests before the first that failed were executed, and so were those that completed after it as successes.
void Link::on_failed(const ibv_wc& completion) noexcept {
  if (!engine::wr::is_receive(completion.wr_id)) {
    const std::uint32_t position = engine::wr::position_of(completion.wr_id);
    if (completion.status == IBV_WC_SUCCESS) {
      complete_started(position);
    } else if (reason() == Status::kOk) {
      complete_started(position - 1);
    }
  }
  handle_failed(completion);
}

void Link::on_receive(const ibv_wc& completion) noexcept {
  took_receive();
  ++used_receives_;
  if (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM) {
    begin_failure(Status::kProtocol);
    return;
  }
  handler_->on_immediate(*this, ntohl(completion.imm_data), completion.byte_len);
  if (used_receives_ * 4 < options_.receives || reason() != Status::kOk) return;
  // All are alike: any list of them will do.
  ibv_recv_wr& last = receive_requests_[used_receives_ - 1];
  ibv_recv_wr* const linked = std::exchange(last.next, nullptr);
  if (post_receives(receive_requests_[0], used_receives_)) used_receives_ = 0;
  last.next = linked;
}

void Link::complete(std::uint64_t id) noexcept {
  const std::uint32_t slot = in_flight_.find(id);
  if (slot == kNoSlot) return;
  in_flight_.end(slot);
  if (slot == waiting_) {
    waiting_ = kNoSlot;
  } else {
    --count().quarantined;
  }
}

// What is left is in quarantine, or belongs to the call that waits for the drain.
void Link::on_drained() noexcept {
  for (std::uint32_t slot = 0; slot < in_flight_.capacity(); ++slot) {
    if (!in_flight_.live(slot)) continue;
    in_flight_.end(slot);
    if (slot == waiting_) continue;
    --count().quarantined;
  }
  const Status why = reason() != Status::kOk ? reason() : Status::kClosed;
  while (completed_ != started_) complete_oldest(why);
  if (reason() != Status::kOk) handler_->on_failure(*this, why);
}

}  // namespace verbena::remote
