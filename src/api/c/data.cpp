// Messages and one-sided access of verbena/rdma.h.
#include "api/c/arguments.hpp"
#include "api/c/handles.hpp"

#include <utility>

using namespace verbena::api;
using namespace verbena::api::c;
using verbena::Status;
using verbena::session::LocalSpan;
using verbena::session::Place;
using verbena::session::Session;

namespace verbena::api::c {
namespace {

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);

/// Whether the connection can be used and a pointer with a length was given. Remembers the failure otherwise.
[[nodiscard]] inline bool is_ready(RdmaConn* conn, const char* call, const char* name = "", const void* data = nullptr,
                                   std::size_t length = 0) noexcept {
  if (conn != nullptr && conn->session != nullptr && (data != nullptr || length == 0)) [[likely]]
    return true;
  return on(conn, call, [&](Session& /*of*/) { return check_given(name, data); }) == RDMA_OK;
}

[[gnu::cold]] bool explain_buffer(RdmaConn* conn, const char* call, const char* data_name, const void* data,
                                  const char* length_name, std::size_t length) noexcept {
  return coded_on(conn, call, [&]() -> Result<void> {
           VERBENA_TRY(check_some(length_name, length));
           VERBENA_TRY(check_given(data_name, data));
           return conn->check();
         }) == RDMA_OK;
}
/// Whether the arguments of a transfer can work. Otherwise remembers the failure, with the argument's name.
[[nodiscard]] inline bool is_transfer(RdmaConn* conn, const char* call, const char* data_name, const void* data,
                                      const char* length_name, std::size_t length) noexcept {
  if (conn != nullptr && conn->session != nullptr && data != nullptr && length != 0) [[likely]]
    return true;
  return explain_buffer(conn, call, data_name, data, length_name, length);
}

/// Remembers that a part is not inside the peer's default window.
[[gnu::cold]] void refuse_place(const RdmaConn& conn, const char* call, std::size_t offset, const char* length_name,
                                std::size_t length) noexcept {
  (void)note_on(conn, note(Status::kOutOfRange, as_written(call),
                           "offset {} and {} {} are not inside the peer's window of {} bytes", offset, length_name,
                           length, conn.owner().peer_window().length));
}

/// The part of the peer's default window at an offset. False: outside it; remembers the failure.
[[nodiscard]] inline bool find_place(RdmaConn& conn, const char* call, std::size_t offset, const char* length_name,
                                     std::size_t length, Place& place) noexcept {
  if (conn.owner().in_window(offset, length, place) == Status::kOk) [[likely]]
    return true;
  refuse_place(conn, call, offset, length_name, length);
  return false;
}

[[nodiscard]] LocalSpan span_at(std::uint64_t address, std::uint32_t lkey, std::uint32_t length) noexcept {
  return {reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address)), length, lkey};
}

/// The names that this API's users know, for messages.
constexpr Terms kTerms{.address = "remote_addr",
                       .length_prefix = "length ",
                       .find = "rdmaConnLookup",
                       .export_physical = "rdmaPAExport",
                       .complete = "rdmaConnComplete"};

/// Remembers why a transfer between registered memory failed, with the name of the wrong argument. Returns its code.
[[gnu::cold]] int explain_transfer(RdmaConn& conn, const char* call, Status status, const LocalSpan& local,
                                   const Place& place) noexcept {
  call = as_written(call);
  if (status != Status::kLocalAccess) return note_on(conn, note_transfer(conn.owner(), call, status, place, kTerms));
  return note_on(
      conn, note(status, call, "local_addr {:#x} and length {} are not inside memory registered here under lkey {:#x}",
                 reinterpret_cast<std::uintptr_t>(local.data), local.length, local.lkey));
}

/// Calls `attempt(local, place)` with the arguments of a transfer between registered memory.
template <class Attempt>
inline int transfer(RdmaConn* conn, const char* call, std::uint64_t local_addr, std::uint32_t lkey, const Place& place,
                    std::uint32_t length, Attempt&& attempt) noexcept {
  const auto* const data = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(local_addr));
  if (!is_transfer(conn, call, "local_addr", data, "length", length)) return last_code();
  const LocalSpan local = span_at(local_addr, lkey, length);
  const Status status = attempt(conn->owner(), local, place);
  if (status == Status::kOk) [[likely]]
    return RDMA_OK;
  return explain_transfer(*conn, call, status, local, place);
}

template <bool kIsRead>
[[gnu::noinline]] int transfer_and_wait(RdmaConn* conn, const char* call, std::uint64_t local_addr, std::uint32_t lkey,
                                        const Place& place, std::uint32_t length) noexcept {
  return transfer(conn, call, local_addr, lkey, place, length,
                  [](Session& session, const LocalSpan& local, const Place& remote) {
                    return kIsRead ? session.read(local, remote, session.default_patience())
                                   : session.write(local, remote, session.default_patience());
                  });
}
template <bool kIsRead>
inline int transfer_now(RdmaConn* conn, const char* call, std::uint64_t local_addr, std::uint32_t lkey,
                        const Place& place, std::uint32_t length) noexcept {
  if (conn != nullptr && conn->session != nullptr) [[likely]] {
    const LocalSpan local = span_at(local_addr, lkey, length);
    const bool is_done = kIsRead ? conn->owner().read_now(local, place) : conn->owner().write_now(local, place);
    if (is_done) [[likely]]
      return RDMA_OK;
  }
  return transfer_and_wait<kIsRead>(conn, call, local_addr, lkey, place, length);
}
template <bool kIsRead>
int start_transfer(RdmaConn* conn, const char* call, std::uint64_t local_addr, std::uint32_t lkey, const Place& place,
                   std::uint32_t length, std::uint64_t cookie) noexcept {
  return transfer(conn, call, local_addr, lkey, place, length,
                  [cookie](Session& session, const LocalSpan& local, const Place& remote) {
                    return kIsRead ? session.start_read(local, remote, cookie)
                                   : session.start_write(local, remote, cookie);
                  });
}

/// Calls `attempt(session)` for an atomic on `word`.
template <class Attempt>
int on_word(RdmaConn* conn, const char* call, const Place& word, Attempt&& attempt) noexcept {
  if (!is_ready(conn, call)) return last_code();
  if (word.span.address % kWordBytes != 0) [[unlikely]]
    return conn->remember(refuse(call, "remote_addr must be a multiple of 8; got {:#x}", word.span.address));
  const Status status = attempt(conn->owner());
  return status == Status::kOk ? RDMA_OK : explain_transfer(*conn, call, status, {}, word);
}

int change_word(RdmaConn* conn, const char* call, const channel::Change& change, const Place& word,
                std::uint64_t* old) noexcept {
  clear(old);
  return on_word(conn, call, word, [&](Session& session) {
    std::uint64_t found = 0;
    const Status status = session.change_now(change, word, found)
                              ? Status::kOk
                              : session.change(change, word, found, session.default_patience());
    if (status == Status::kOk && old != nullptr) *old = found;
    return status;
  });
}

int start_change(RdmaConn* conn, const char* call, const channel::Change& change, const Place& word,
                 std::uint64_t cookie) noexcept {
  return on_word(conn, call, word, [&](Session& session) { return session.start_change(change, word, cookie); });
}

std::size_t send(RdmaConn* conn, const char* call, const void* data, std::size_t length,
                 std::optional<std::uint32_t> immediate) noexcept {
  if (!is_transfer(conn, call, "data", data, "data_len", length)) return 0;
  const Status status =
      conn->owner().send({static_cast<const std::byte*>(data), length}, immediate, conn->owner().default_patience());
  return result_of(*conn, status, call) == RDMA_OK ? length : 0;
}

int write_with_immediate(RdmaConn* conn, const char* call, std::uint32_t immediate, std::size_t offset,
                         const void* data, std::size_t length) noexcept {
  if (!is_ready(conn, call, "data", data, length)) return last_code();
  Place place;
  if (!find_place(*conn, call, offset, "data_len", length, place)) return RDMA_ERR_OUT_OF_RANGE;
  const Status status = conn->owner().write_with_immediate({static_cast<const std::byte*>(data), length}, immediate,
                                                           offset, conn->owner().default_patience());
  return result_of(*conn, status, call);
}

inline std::size_t write_window(RdmaConn* conn, const char* call, std::size_t offset, const void* data,
                                std::size_t length) noexcept {
  if (!is_transfer(conn, call, "data", data, "data_len", length)) return 0;
  Place place;
  if (!find_place(*conn, call, offset, "data_len", length, place)) return 0;
  Session& session = conn->owner();
  const std::span from(static_cast<const std::byte*>(data), length);
  if (session.write_now(from, place)) [[likely]]
    return length;
  const Status status = session.write(from, place, session.default_patience());
  return result_of(*conn, status, call) == RDMA_OK ? length : 0;
}

inline int read_window(RdmaConn* conn, const char* call, std::size_t offset, void* data, std::size_t length) noexcept {
  if (!is_transfer(conn, call, "data_buf", data, "buf_len", length)) return last_code();
  Place place;
  if (!find_place(*conn, call, offset, "buf_len", length, place)) return RDMA_ERR_OUT_OF_RANGE;
  Session& session = conn->owner();
  const std::span to(static_cast<std::byte*>(data), length);
  if (session.read_now(to, place)) [[likely]]
    return RDMA_OK;
  const Status status = session.read(to, place, session.default_patience());
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
  clear(message);
  if (!is_ready(conn, call, "buffer", buffer, buffer_len)) return last_code();
  if (!conn->owner().receives())
    return note_on(*conn, note(Status::kUnsupported, call,
                               "messages go to a callback or are discarded: set recv_mode to RDMA_RECV_QUEUE, and no "
                               "receive callback"));
  verbena::rdma::Message got;
  std::size_t needed = 0;
  const Status status =
      conn->owner().receive({static_cast<std::byte*>(buffer), buffer_len}, got, needed, patience_of(*conn, timeout_ms));
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
  return transfer_now<false>(conn, __func__, local_addr, lkey, key_place(remote_addr, rkey, length), length);
}
int rdmaSyncReadSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                         uint32_t length) {
  return transfer_now<true>(conn, __func__, local_addr, lkey, key_place(remote_addr, rkey, length), length);
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
  return start_transfer<false>(conn, __func__, local_addr, lkey, key_place(remote_addr, rkey, length), length, cookie);
}
int rdmaStartRead(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                  uint32_t length, uint64_t cookie) {
  return start_transfer<true>(conn, __func__, local_addr, lkey, key_place(remote_addr, rkey, length), length, cookie);
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
  clear(completion);
  if (!is_ready(conn, call, "completion", completion, 1)) return last_code();
  verbena::rdma::Completion got;
  const Status status = conn->owner().complete(got, patience_of(*conn, timeout_ms));
  *completion = completion_of(got);
  if (status == Status::kNotFound)
    return note_on(*conn, note(status, call, "nothing is in flight: start it first, with rdmaStartWrite or the like"));
  return result_of(*conn, status, call);
}

// --- by physical address

int rdmaPASyncWriteSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length) {
  return transfer_now<false>(conn, __func__, local_addr, lkey, physical_place(remote_addr, length), length);
}
int rdmaPASyncReadSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length) {
  return transfer_now<true>(conn, __func__, local_addr, lkey, physical_place(remote_addr, length), length);
}
int rdmaPASyncFetchAdd(RdmaConn* conn, uint64_t remote_addr, uint64_t add, uint64_t* old) {
  return change_word(conn, __func__, {.compare_add = add}, physical_place(remote_addr, kWordBytes), old);
}
int rdmaPASyncCompareSwap(RdmaConn* conn, uint64_t remote_addr, uint64_t expected, uint64_t desired, uint64_t* old) {
  return change_word(conn, __func__, swap_of(expected, desired), physical_place(remote_addr, kWordBytes), old);
}
int rdmaPAWriteSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length) {
  return start_transfer<false>(conn, __func__, local_addr, lkey, physical_place(remote_addr, length), length,
                               local_addr);
}
int rdmaPAReadSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length) {
  return start_transfer<true>(conn, __func__, local_addr, lkey, physical_place(remote_addr, length), length,
                              local_addr);
}
