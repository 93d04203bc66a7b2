#include "base/failure.hpp"

namespace verbena {

namespace {

constinit thread_local std::uint64_t failures = 0;

struct Failure {
  Error error;
  const char* (*sentence)(Status) noexcept = nullptr;  ///< If not null, the text is still to be made.
  char text[Error::kTextBytes + 96] = "";
};

Failure& this_threads() noexcept {
  thread_local Failure failure;
  return failure;
}

}  // namespace

const Error& last_failure() noexcept {
  Failure& failure = this_threads();
  if (const auto sentence = std::exchange(failure.sentence, nullptr); sentence != nullptr)
    failure.error = Error(failure.error.status(), failure.error.call(), 0, sentence(failure.error.status()));
  return failure.error;
}

const char* last_failure_text() noexcept {
  const Error& error = last_failure();
  Failure& failure = this_threads();
  if (error.status() == Status::kOk) return "";
  const auto end = fmt::format_to_n(failure.text, sizeof failure.text - 1, "{}: {}", error.call(), error.text());
  *end.out = '\0';
  return failure.text;
}

const char* error_detail() noexcept { return last_failure_text(); }

std::uint64_t failure_count() noexcept { return failures; }

Status note(const Error& error) noexcept {
  Failure& failure = this_threads();
  failure.error = error;
  failure.sentence = nullptr;
  ++failures;
  return error.status();
}

Status note_later(Status status, const char* call, const char* (*sentence)(Status) noexcept) noexcept {
  Failure& failure = this_threads();
  failure.error = Error(status, call, 0, {});
  failure.sentence = sentence;
  ++failures;
  return status;
}

const char* sentence_of(Status status) noexcept {
  switch (status) {
    case Status::kOk: return "success";
    case Status::kAgain: return "a queue is full: complete something, then try again";
    case Status::kTimedOut:
      return "the deadline passed: the peer is slow, stopped or not there; raise the timeout, or look at the peer";
    case Status::kNotFound: return "no such name or window: check the spelling, and that the peer has it";
    case Status::kTooLong: return "a message is longer than the limit: raise max_message_bytes, or send less at once";
    case Status::kBufferTooSmall:
      return "the buffer cannot hold the message, which stays queued: call again with the length that "
             "the call returned";
    case Status::kBadArgument:
      return "an argument is null, zero, misaligned or outside its range: compare it with what the call takes";
    case Status::kOutOfRange:
      return "the range is not inside the peer's window: ask for the peer's window, or raise the peer's window_bytes";
    case Status::kLocalAccess: return "the local key does not cover the buffer, or lacks the right: register it so";
    case Status::kUnsupported:
      return "this connection or device does not have it: messages that go to a handler or are discarded cannot "
             "be received; for the rest use another device";
    case Status::kBusy:
      return "it is in use, or it is too late for this call: one thread at a time, options and callbacks before start";
    case Status::kPeerLost: return "the peer's process, host or link is gone: connect again once it is back";
    case Status::kConnectionRefused: return "nothing listens there: start the server, or check address and port";
    case Status::kRejected: return "the server refused: look at its limits and its log";
    case Status::kProtocol: return "the peer does not speak this library's protocol: use one version on both sides";
    case Status::kRemoteAccess: return "the peer's NIC refused the key, range or right: check what it has exported";
    case Status::kRemoteInvalid: return "the peer's NIC refused the request's form: use one version on both sides";
    case Status::kRetryExceeded:
      return "the peer's NIC never answered: check addresses, cables and firewalls (UDP port 4791 for RoCE)";
    case Status::kRnrExceeded: return "the peer received no messages in time: look at what its process does";
    case Status::kFlushed: return "the connection failed before this was done: connect again";
    case Status::kClosed: return "the connection is closed, by this side or the other: connect again";
    case Status::kNotAllowed: return "the peer runs as another user: run both as one, or put it on the allow-list";
    case Status::kOtherNamespace:
      return "the peer is in another network or PID namespace, where the software NIC does not reach: share them";
    case Status::kOtherHost: return "the software NIC reaches this host only: use an RDMA device, or Soft-RoCE";
    case Status::kNoMemory: return "there is not enough memory: free some, lower window_bytes, or raise ulimit -l";
    case Status::kLimit:
      return "a limit of the options or of the system is reached: raise it, or close what is not needed";
    case Status::kPermission:
      return "the system refused: a capability or a setting is missing, which verbena-info looks for";
    case Status::kDevice: return "the NIC failed or is gone: see dmesg, and verbena-info";
    case Status::kSystem: return "a system call failed: see dmesg, and verbena-info";
    case Status::kForked:
      return "this process was forked from one that uses Verbena: connect in the parent, or exec a program that does";
    case Status::kDenied: return "this user has no right to do that: have the server grant it";
    case Status::kOverQuota: return "this user's quota is used up: delete some, or have the server raise it";
    case Status::kCancelled: return "this side gave it up: start it again if it is still wanted";
    default: return "an unknown failure: report it";
  }
}

}  // namespace verbena
