#include "c/codes.hpp"

#include "base/error.hpp"

#include <verbena/rdma.h>

#include <string_view>

namespace verbena::c {
namespace {

static_assert(code_of(Status::kOk) == RDMA_OK && code_of(Status::kAgain) == RDMA_ERR_AGAIN);
static_assert(code_of(Status::kTimedOut) == RDMA_ERR_TIMED_OUT && code_of(Status::kNotFound) == RDMA_ERR_NOT_FOUND);
static_assert(code_of(Status::kTooLong) == RDMA_ERR_TOO_LONG);
static_assert(code_of(Status::kBufferTooSmall) == RDMA_ERR_BUFFER_TOO_SMALL);
static_assert(code_of(Status::kBadArgument) == RDMA_ERR_BAD_ARGUMENT);
static_assert(code_of(Status::kOutOfRange) == RDMA_ERR_OUT_OF_RANGE);
static_assert(code_of(Status::kLocalAccess) == RDMA_ERR_LOCAL_ACCESS);
static_assert(code_of(Status::kUnsupported) == RDMA_ERR_UNSUPPORTED && code_of(Status::kBusy) == RDMA_ERR_BUSY);
static_assert(code_of(Status::kPeerLost) == RDMA_ERR_PEER_LOST);
static_assert(code_of(Status::kConnectionRefused) == RDMA_ERR_CONNECTION_REFUSED);
static_assert(code_of(Status::kRejected) == RDMA_ERR_REJECTED && code_of(Status::kProtocol) == RDMA_ERR_PROTOCOL);
static_assert(code_of(Status::kRemoteAccess) == RDMA_ERR_REMOTE_ACCESS);
static_assert(code_of(Status::kRemoteInvalid) == RDMA_ERR_REMOTE_INVALID);
static_assert(code_of(Status::kRetryExceeded) == RDMA_ERR_RETRY_EXCEEDED);
static_assert(code_of(Status::kRnrExceeded) == RDMA_ERR_RNR_EXCEEDED);
static_assert(code_of(Status::kFlushed) == RDMA_ERR_FLUSHED && code_of(Status::kClosed) == RDMA_ERR_CLOSED);
static_assert(code_of(Status::kNotAllowed) == RDMA_ERR_NOT_ALLOWED);
static_assert(code_of(Status::kOtherNamespace) == RDMA_ERR_OTHER_NAMESPACE);
static_assert(code_of(Status::kOtherHost) == RDMA_ERR_OTHER_HOST);
static_assert(code_of(Status::kNoMemory) == RDMA_ERR_NO_MEMORY && code_of(Status::kLimit) == RDMA_ERR_LIMIT);
static_assert(code_of(Status::kPermission) == RDMA_ERR_PERMISSION && code_of(Status::kDevice) == RDMA_ERR_DEVICE);
static_assert(code_of(Status::kSystem) == RDMA_ERR_SYSTEM);

const char* sentence_of(int code) noexcept {
  switch (code) {
    case RDMA_OK: return "success";
    case RDMA_ERR: return "failed: the program's own code, which this library never returns";
    case RDMA_ERR_AGAIN: return "a queue is full: complete something, then try again";
    case RDMA_ERR_TIMED_OUT:
      return "the deadline passed: the peer is slow, stopped or not there; raise the timeout, or look at the peer";
    case RDMA_ERR_NOT_FOUND: return "no such name or window: check the spelling, and that the peer has it";
    case RDMA_ERR_TOO_LONG: return "a message is longer than the limit: raise max_message_bytes, or send less at once";
    case RDMA_ERR_BUFFER_TOO_SMALL:
      return "the buffer cannot hold the message, which waits on: call again with as many bytes as message->length "
             "says";
    case RDMA_ERR_BAD_ARGUMENT:
      return "an argument can never work, such as a null pointer, a length of 0 or a port beyond 65535: see the detail";
    case RDMA_ERR_OUT_OF_RANGE:
      return "the range is not inside the peer's window: see rdmaConnPeerWindowBytes, or raise the peer's window_bytes";
    case RDMA_ERR_LOCAL_ACCESS: return "the local key does not cover the buffer, or lacks the right: register it so";
    case RDMA_ERR_UNSUPPORTED:
      return "this connection or device does not have it: set recv_mode to RDMA_RECV_QUEUE for rdmaConnRecv, or use "
             "another device";
    case RDMA_ERR_BUSY:
      return "it is in use, or it is too late for this call: one thread at a time, options and callbacks before start";
    case RDMA_ERR_PEER_LOST: return "the peer's process, host or link is gone: connect again once it is back";
    case RDMA_ERR_CONNECTION_REFUSED: return "nothing listens there: start the server, or check address and port";
    case RDMA_ERR_REJECTED: return "the server said no: the detail has its reason";
    case RDMA_ERR_PROTOCOL: return "the peer does not speak this library's protocol: use one version on both sides";
    case RDMA_ERR_REMOTE_ACCESS: return "the peer's NIC refused the key, range or right: check what it has exported";
    case RDMA_ERR_REMOTE_INVALID: return "the peer's NIC refused the request's form: use one version on both sides";
    case RDMA_ERR_RETRY_EXCEEDED:
      return "the peer's NIC never answered: check addresses, cables and firewalls (UDP port 4791 for RoCE)";
    case RDMA_ERR_RNR_EXCEEDED: return "the peer took no messages in time: look at what its process does";
    case RDMA_ERR_FLUSHED: return "the connection failed before this was done: see rdmaConnError, and connect again";
    case RDMA_ERR_CLOSED: return "the connection is closed, by this side or the other: connect again";
    case RDMA_ERR_NOT_ALLOWED: return "the peer runs as another user: run both as one, or put it on the allow-list";
    case RDMA_ERR_OTHER_NAMESPACE:
      return "the peer is in another network or PID namespace, where the software NIC does not reach: share them";
    case RDMA_ERR_OTHER_HOST: return "the software NIC reaches this host only: use an RDMA device, or Soft-RoCE";
    case RDMA_ERR_NO_MEMORY: return "memory could not be had: free some, lower window_bytes, or raise ulimit -l";
    case RDMA_ERR_LIMIT: return "a limit is reached, of the options or of the system: the detail names it";
    case RDMA_ERR_PERMISSION: return "the system refused: the detail names the capability or setting";
    case RDMA_ERR_DEVICE: return "the NIC failed or is gone: see dmesg, and verbena-info";
    case RDMA_ERR_SYSTEM: return "a system call failed: the detail names it and its errno";
    default: return "no code of this library";
  }
}

Error& last_error() noexcept {
  thread_local Error error;
  return error;
}

}  // namespace

int note(const Error& error) noexcept {
  last_error() = error;
  return code_of(error.status());
}

int note(Status status, const char* call) noexcept {
  // As users write it, and not as it is linked.
  constexpr std::string_view kPrefix = "verbena_";
  if (std::string_view(call).starts_with(kPrefix)) call += kPrefix.size();
  const int code = code_of(status);
  if (status != Status::kOk) last_error() = format_error(status, call, 0, "{}: {}", call, sentence_of(code));
  return code;
}

}  // namespace verbena::c

const char* rdmaErrorString(int code) { return verbena::c::sentence_of(code); }
const char* rdmaErrorDetail(void) { return verbena::c::last_error().text(); }
