#include "api/c/codes.hpp"

#include <verbena/rdma.h>

namespace verbena::api::c {
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
static_assert(code_of(Status::kSystem) == RDMA_ERR_SYSTEM && code_of(Status::kForked) == RDMA_ERR_FORKED);

}  // namespace
}  // namespace verbena::api::c

const char* rdmaErrorString(int code) {
  using namespace verbena::api;
  using verbena::sentence_of;
  if (code == RDMA_ERR) return "failed: the program's own code, which this library never returns";
  return c::is_code(code) ? sentence_of(c::status_of(code)) : "no code of this library";
}

const char* rdmaErrorDetail(void) { return verbena::last_failure_text(); }
