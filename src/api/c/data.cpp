// Messages and one-sided access of verbena/rdma.h.
#include "api/c/handles.hpp"

#include <utility>

using namespace verbena;
using namespace verbena::api;
using namespace verbena::api::c;
using verbena::Status;
using verbena::session::LocalSpan;
using verbena::session::Place;
using verbena::session::Session;
using verbena::session::TransferCall;

namespace verbena::api::c {
namespace {

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);

/// Whether the arguments of a transfer can work; else the failure is remembered, by the name of the argument.
[[gnu::cold]] bool explain_buffer(RdmaConn* conn, const char* call, const char* data_name, const void* data,
                                  const char* length_name, std::size_t length) noexcept {
  if (!is_given(as_written(call), "conn", conn)) return false;
  if (is_in_range(as_written(call), length_name, length) && is_given(as_written(call), data_name, data))
    return is_usable(conn, call);
  (void)note_on(*conn, Status::kBadArgument);
  return false;
}

[[nodiscard]] inline bool is_plain(const RdmaConn* conn, const void* data, std::size_t length) noexcept {
  return conn != nullptr && conn->session != nullptr && data != nullptr && length != 0;
}

/// Remembers that a part is not inside the peer's default window.
[[gnu::cold]] void refuse_place(const RdmaConn& conn, const char* call, std::size_t offset, const char* length_name,
                                std::size_t length) noexcept {
  (void)note_on(conn, note(Status::kOutOfRange, as_written(call),
                           "offset {} and {} {} are not inside the peer's window of {} bytes", offset, length_name,
                           length, conn.session->peer_window().length));
}

/// The part of the peer's default window at an offset; false, with the failure remembered, outside it.
[[nodiscard]] inline bool find_place(RdmaConn& conn, const char* call, std::size_t offset, const char* length_name,
                                     std::size_t length, Place& place) noexcept {
  if (conn.session->in_window(offset, length, place) == Status::kOk) [[likely]]
    return true;
  refuse_place(conn, call, offset, length_name, length);
  return false;
}

[[nodiscard]] Place key_place(std::uint64_t address, std::uint32_t rkey, std::uint64_t length) noexcept {
  return {.space = TransferCall::Space::kKey, .span = {address, length, rkey}};
}
[[nodiscard]] Place physical_place(std::uint64_t address, std::uint64_t length) noexcept {
  return {.space = TransferCall::Space::kPhysical, .span = {address, length, 0}};
}
[[nodiscard]] LocalSpan span_at(std::uint64_t address, std::uint32_t lkey, std::uint32_t length) noexcept {
  return {reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address)), length, lkey};
}

/// Remembers that a part is not inside the window, or the physical memory, that it names.
[[gnu::cold]] int refuse_remote(const RdmaConn& conn, const char* call, const Place& place) noexcept {
  const nic::Window& window = conn.session->peer_window();
  const bool is_default = place.space == TransferCall::Space::kKey && window.rkey == place.span.rkey;
  if (is_default) {
    (void)note(Status::kOutOfRange, call,
               "remote_addr {:#x} and length {} are not inside the peer's window of {} bytes at {:#x}",
               place.span.address, place.span.length, window.length, window.address);
  } else {
    (void)note(Status::kOutOfRange, call, "remote_addr {:#x} and length {} are not inside what the peer has exported{}",
               place.span.address, place.span.length,
               place.space == TransferCall::Space::kPhysical ? " by physical address" : " under that rkey");
  }
  return note_on(conn, Status::kOutOfRange);
}

/// What a transfer between registered memory came to, with what is wrong by name.
[[gnu::cold]] int explain_transfer(RdmaConn& conn, const char* call, Status status, const LocalSpan& local,
                                   const Place& place) noexcept {
  call = as_written(call);
  switch (status) {
    case Status::kLocalAccess:
      (void)note(status, call, "local_addr {:#x} and length {} are not inside memory registered here under lkey {:#x}",
                 reinterpret_cast<std::uintptr_t>(local.data), local.length, local.lkey);
      return note_on(conn, status);
    case Status::kNotFound:
      if (place.space == TransferCall::Space::kPhysical) {
        (void)note(
            status, call,
            "remote_addr {:#x} is not known: the peer has exported nothing by physical address, which it does by "
            "rdmaPAExport",
            place.span.address);
      } else {
        (void)note(status, call, "no window of the peer has the rkey {:#x}: ask for one by rdmaConnLookup",
                   place.span.rkey);
      }
      return note_on(conn, status);
    case Status::kOutOfRange: return refuse_remote(conn, call, place);
    case Status::kRemoteAccess:
      if (conn.session->reason() != Status::kOk) return result_of(conn, status, call);
      (void)note(status, call, "the window with rkey {:#x} lacks the right to this: the peer registers it with that",
                 place.span.rkey);
      return note_on(conn, status);
    case Status::kAgain:
      (void)note(status, call, "64 operations are under way, or complete and not taken: take one by rdmaConnComplete");
      return note_on(conn, status);
    default: return result_of(conn, status, call);
  }
}

/// Carries `attempt(local, place)` out with the arguments of a transfer between registered memory.
template <class Attempt>
inline int transfer(RdmaConn* conn, const char* call, std::uint64_t local_addr, std::uint32_t lkey, const Place& place,
                    std::uint32_t length, Attempt&& attempt) noexcept {
  if (conn == nullptr || conn->session == nullptr || local_addr == 0 || length == 0) [[unlikely]] {
    const void* const data = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(local_addr));
    if (!explain_buffer(conn, call, "local_addr", data, "length", length)) return code_of(last_failure().status());
  }
  const LocalSpan local = span_at(local_addr, lkey, length);
  const Status status = attempt(*conn->session, local, place);
  if (status == Status::kOk) [[likely]]
    return RDMA_OK;
  return explain_transfer(*conn, call, status, local, place);
}

inline int write_registered(RdmaConn* conn, const char* call, std::uint64_t local_addr, std::uint32_t lkey,
                            const Place& place, std::uint32_t length) noexcept {
  return transfer(conn, call, local_addr, lkey, place, length,
                  [](Session& session, const LocalSpan& local, const Place& to) {
                    return session.write(local, to, [&] { return session.default_patience(); });
                  });
}
inline int read_registered(RdmaConn* conn, const char* call, std::uint64_t local_addr, std::uint32_t lkey,
                           const Place& place, std::uint32_t length) noexcept {
  return transfer(conn, call, local_addr, lkey, place, length,
                  [](Session& session, const LocalSpan& local, const Place& from) {
                    return session.read(local, from, [&] { return session.default_patience(); });
                  });
}
int start_write(RdmaConn* conn, const char* call, std::uint64_t local_addr, std::uint32_t lkey, const Place& place,
                std::uint32_t length, std::uint64_t cookie) noexcept {
  return transfer(conn, call, local_addr, lkey, place, length,
                  [cookie](Session& session, const LocalSpan& local, const Place& to) {
                    return session.start_write(local, to, cookie);
                  });
}
int start_read(RdmaConn* conn, const char* call, std::uint64_t local_addr, std::uint32_t lkey, const Place& place,
               std::uint32_t length, std::uint64_t cookie) noexcept {
  return transfer(conn, call, local_addr, lkey, place, length,
                  [cookie](Session& session, const LocalSpan& local, const Place& from) {
                    return session.start_read(local, from, cookie);
                  });
}

[[nodiscard]] bool is_aligned(RdmaConn& conn, const char* call, const Place& word) noexcept {
  if (word.span.address % kWordBytes == 0) [[likely]]
    return true;
  (void)note_on(conn, note(Status::kBadArgument, as_written(call), "remote_addr must be a multiple of 8; got {:#x}",
                           word.span.address));
  return false;
}

int change_word(RdmaConn* conn, const char* call, const channel::Change& change, const Place& word,
                std::uint64_t* old) noexcept {
  if (!is_usable(conn, call) || !is_aligned(*conn, call, word)) return code_of(last_failure().status());
  std::uint64_t found = 0;
  const Status status = conn->session->change(change, word, found, conn->session->default_patience());
  if (status != Status::kOk) [[unlikely]]
    return explain_transfer(*conn, call, status, {}, word);
  if (old != nullptr) *old = found;
  return RDMA_OK;
}

int start_change(RdmaConn* conn, const char* call, const channel::Change& change, const Place& word,
                 std::uint64_t cookie) noexcept {
  if (!is_usable(conn, call) || !is_aligned(*conn, call, word)) return code_of(last_failure().status());
  const Status status = conn->session->start_change(change, word, cookie);
  return status == Status::kOk ? RDMA_OK : explain_transfer(*conn, call, status, {}, word);
}

[[nodiscard]] constexpr channel::Change swap_of(std::uint64_t expected, std::uint64_t desired) noexcept {
  return {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .compare_add = expected, .swap = desired};
}

std::size_t send(RdmaConn* conn, const char* call, const void* data, std::size_t length,
                 std::optional<std::uint32_t> immediate) noexcept {
  if (!is_plain(conn, data, length)) [[unlikely]]
    if (!explain_buffer(conn, call, "data", data, "data_len", length)) return 0;
  const Status status =
      conn->session->send({static_cast<const std::byte*>(data), length}, immediate, conn->session->default_patience());
  return result_of(*conn, status, call) == RDMA_OK ? length : 0;
}

int write_with_immediate(RdmaConn* conn, const char* call, std::uint32_t immediate, std::size_t offset,
                         const void* data, std::size_t length) noexcept {
  if (!is_usable(conn, call) || (length != 0 && !is_given(as_written(call), "data", data)))
    return code_of(last_failure().status());
  Place place;
  if (!find_place(*conn, call, offset, "data_len", length, place)) return RDMA_ERR_OUT_OF_RANGE;
  const Status status = conn->session->write_with_immediate({static_cast<const std::byte*>(data), length}, immediate,
                                                            offset, conn->session->default_patience());
  return result_of(*conn, status, call);
}

inline std::size_t write_window(RdmaConn* conn, const char* call, std::size_t offset, const void* data,
                                std::size_t length) noexcept {
  if (!is_plain(conn, data, length)) [[unlikely]]
    if (!explain_buffer(conn, call, "data", data, "data_len", length)) return 0;
  Place place;
  if (!find_place(*conn, call, offset, "data_len", length, place)) return 0;
  Session& session = *conn->session;
  const std::span from(static_cast<const std::byte*>(data), length);
  const Status status = session.write(from, place, [&] { return session.default_patience(); });
  return result_of(*conn, status, call) == RDMA_OK ? length : 0;
}

inline int read_window(RdmaConn* conn, const char* call, std::size_t offset, void* data, std::size_t length) noexcept {
  if (!is_plain(conn, data, length)) [[unlikely]]
    if (!explain_buffer(conn, call, "data_buf", data, "buf_len", length)) return code_of(last_failure().status());
  Place place;
  if (!find_place(*conn, call, offset, "buf_len", length, place)) return RDMA_ERR_OUT_OF_RANGE;
  Session& session = *conn->session;
  const std::span to(static_cast<std::byte*>(data), length);
  const Status status = session.read(to, place, [&] { return session.default_patience(); });
  return result_of(*conn, status, call);
}

}  // namespace
}  // namespace verbena::api::c

// --- messages

size_t rdmaConnSend(RdmaConn* conn, const void* data, size_t data_len) {
  return send(conn, __func__, data, data_len, std::nullopt);
}

size_t rdmaConnSendWithImm(RdmaConn* conn, uint32_t imm_data, const void* data, size_t data_len) {
  return send(conn, __func__, data, data_len, imm_data);
}

int rdmaConnRecv(RdmaConn* conn, void* buffer, size_t buffer_len, RdmaMessage* message, int timeout_ms) {
  const char* const call = as_written(__func__);
  if (!is_usable(conn, call) || (buffer_len != 0 && !is_given(call, "buffer", buffer)))
    return code_of(last_failure().status());
  if (!conn->session->receives())
    return note_on(*conn, note(Status::kUnsupported, call,
                               "messages go to a callback or are discarded: set recv_mode to RDMA_RECV_QUEUE, and no "
                               "receive callback"));
  verbena::rdma::Message got;
  std::size_t needed = 0;
  const Status status = conn->session->receive({static_cast<std::byte*>(buffer), buffer_len}, got, needed,
                                               patience_of(*conn, timeout_ms));
  if (message != nullptr) {
    *message = message_of(got);
    if (status == Status::kBufferTooSmall) message->length = needed;
  }
  if (status == Status::kBufferTooSmall)
    return note_on(*conn, note(status, call, "buffer_len must be at least {} for the message that waits; got {}",
                               needed, buffer_len));
  return result_of(*conn, status, call);
}

// --- the peer's default window

size_t rdmaConnWriteAt(RdmaConn* conn, size_t offset, const void* data, size_t data_len) {
  return write_window(conn, __func__, offset, data, data_len);
}
size_t rdmaConnWrite(RdmaConn* conn, const void* data, size_t data_len) {
  return write_window(conn, __func__, 0, data, data_len);
}

int rdmaConnReadAt(RdmaConn* conn, size_t offset, void* data_buf, size_t buf_len) {
  return read_window(conn, __func__, offset, data_buf, buf_len);
}
int rdmaConnRead(RdmaConn* conn, void* data_buf, size_t buf_len) {
  return read_window(conn, __func__, 0, data_buf, buf_len);
}

int rdmaConnWriteWithImmAt(RdmaConn* conn, uint32_t imm_data, size_t offset, const void* data, size_t data_len) {
  return write_with_immediate(conn, __func__, imm_data, offset, data, data_len);
}
int rdmaConnWriteWithImm(RdmaConn* conn, uint32_t imm_data, const void* data, size_t data_len) {
  return write_with_immediate(conn, __func__, imm_data, 0, data, data_len);
}

// --- between registered memory

int rdmaSyncWriteSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                          uint32_t length) {
  return write_registered(conn, __func__, local_addr, lkey, key_place(remote_addr, rkey, length), length);
}
int rdmaSyncReadSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                         uint32_t length) {
  return read_registered(conn, __func__, local_addr, lkey, key_place(remote_addr, rkey, length), length);
}

int rdmaSyncFetchAdd(RdmaConn* conn, uint64_t remote_addr, uint32_t rkey, uint64_t add, uint64_t* old) {
  return change_word(conn, __func__, {.compare_add = add}, key_place(remote_addr, rkey, kWordBytes), old);
}
int rdmaSyncCompareSwap(RdmaConn* conn, uint64_t remote_addr, uint32_t rkey, uint64_t expected, uint64_t desired,
                        uint64_t* old) {
  return change_word(conn, __func__, swap_of(expected, desired), key_place(remote_addr, rkey, kWordBytes), old);
}

int rdmaStartWrite(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                   uint32_t length, uint64_t cookie) {
  return start_write(conn, __func__, local_addr, lkey, key_place(remote_addr, rkey, length), length, cookie);
}
int rdmaStartRead(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                  uint32_t length, uint64_t cookie) {
  return start_read(conn, __func__, local_addr, lkey, key_place(remote_addr, rkey, length), length, cookie);
}
int rdmaStartFetchAdd(RdmaConn* conn, uint64_t remote_addr, uint32_t rkey, uint64_t add, uint64_t cookie) {
  return start_change(conn, __func__, {.compare_add = add}, key_place(remote_addr, rkey, kWordBytes), cookie);
}
int rdmaStartCompareSwap(RdmaConn* conn, uint64_t remote_addr, uint32_t rkey, uint64_t expected, uint64_t desired,
                         uint64_t cookie) {
  return start_change(conn, __func__, swap_of(expected, desired), key_place(remote_addr, rkey, kWordBytes), cookie);
}

int rdmaConnComplete(RdmaConn* conn, RdmaCompletion* completion, int timeout_ms) {
  const char* const call = as_written(__func__);
  if (!is_usable(conn, call) || !is_given(call, "completion", completion)) return code_of(last_failure().status());
  verbena::rdma::Completion got;
  const Status status = conn->session->complete(got, patience_of(*conn, timeout_ms));
  *completion = completion_of(got);
  if (status == Status::kNotFound)
    return note_on(*conn, note(status, call, "nothing is under way: start it first, by rdmaStartWrite or its like"));
  return result_of(*conn, status, call);
}

// --- by physical address

int rdmaPASyncWriteSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length) {
  return write_registered(conn, __func__, local_addr, lkey, physical_place(remote_addr, length), length);
}
int rdmaPASyncReadSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length) {
  return read_registered(conn, __func__, local_addr, lkey, physical_place(remote_addr, length), length);
}
int rdmaPASyncFetchAdd(RdmaConn* conn, uint64_t remote_addr, uint64_t add, uint64_t* old) {
  return change_word(conn, __func__, {.compare_add = add}, physical_place(remote_addr, kWordBytes), old);
}
int rdmaPASyncCompareSwap(RdmaConn* conn, uint64_t remote_addr, uint64_t expected, uint64_t desired, uint64_t* old) {
  return change_word(conn, __func__, swap_of(expected, desired), physical_place(remote_addr, kWordBytes), old);
}
int rdmaPAWriteSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length) {
  return start_write(conn, __func__, local_addr, lkey, physical_place(remote_addr, length), length, local_addr);
}
int rdmaPAReadSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length) {
  return start_read(conn, __func__, local_addr, lkey, physical_place(remote_addr, length), length, local_addr);
}
