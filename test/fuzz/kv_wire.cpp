// The store's handshakes, requests, large requests piece by piece, and replies.
#include "input.hpp"
#include "kv/index.hpp"
#include "kv/statistics.hpp"
#include "kv/wire.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

namespace verbena::fuzz::kv_wire {
namespace {

using namespace kv;
using namespace kv::wire;

enum class Form : std::uint8_t { kClientHello, kServerHello, kRequest, kLarge, kReply, kEnd };

void append(std::vector<std::byte>& out, Bytes bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); }

void check_client_hello(Bytes bytes) {
  const auto hello = decode_client_hello(bytes);
  if (!hello) {
    VERBENA_CHECK(hello.error() == Status::kProtocol);
    return;
  }
  VERBENA_CHECK(hello->client != 0 && hello->depth != 0 && (hello->flags & ~kClientFlags) == 0);
  VERBENA_CHECK(hello->source.memory_id != 0 || hello->source == ClientHello::Source{});
  VERBENA_CHECK(same_bytes(encode(*hello), bytes));
}

void check_server_hello(Bytes bytes) {
  const auto hello = decode_server_hello(bytes);
  if (!hello) {
    VERBENA_CHECK(hello.error() == Status::kProtocol);
    return;
  }
  VERBENA_CHECK(hello->workers != 0 && hello->depth != 0 && hello->max_value_bytes != 0);
  VERBENA_CHECK(hello->max_key_bytes == kMaxKeyBytes);
  VERBENA_CHECK(hello->window_address + hello->window_length >= hello->window_address);
  if ((hello->flags & kByMessage) != 0) {
    VERBENA_CHECK(window_of(*hello) == nic::Window{} && hello->index_buckets == 0);
  } else {
    // The index lies inside the window, and entries reach all of it.
    VERBENA_CHECK(hello->index_buckets != 0 && hello->index_buckets % 2 == 0);
    VERBENA_CHECK(index_bytes(hello->index_buckets) <= hello->window_length);
  }
  VERBENA_CHECK(hello->window_length <= kMaxWindowBytes && (hello->flags & ~kHelloFlags) == 0);
  VERBENA_CHECK(same_bytes(bytes_of(*hello), bytes));
}

void check_request(Bytes body) {
  Request request;
  const Status status = decode_request(body, request);
  VERBENA_CHECK(is_inside(request.key, body) && is_inside(request.value, body));
  if (status == Status::kProtocol) return;
  // Errors of the request are answered by its id.
  VERBENA_CHECK(status == Status::kOk || status == Status::kBadKey || status == Status::kTooLong);
  VERBENA_CHECK(same_bytes(bytes_of(request.head), body.first(sizeof(RequestHead))));
  if (status != Status::kOk) return;
  const bool scans = is_scan(request.head.op);
  const bool has_key =
      request.head.op != Op::kStatistics && request.head.op != Op::kGoodbye && request.head.op != Op::kReads;
  VERBENA_CHECK((request.head.op >= Op::kGet && request.head.op <= Op::kGoodbye) || request.head.op == Op::kCell ||
                request.head.op == Op::kGetPart || request.head.op == Op::kPutRead ||
                (request.head.op >= Op::kKeys && request.head.op <= Op::kReads));
  VERBENA_CHECK((request.head.flags == kHasTtl) == (request.ttl_ns != 0) && request.ttl_ns <= kMostTtlNs);
  VERBENA_CHECK(request.head.op != Op::kGetPart || request.expected < kMostValueBytes);
  VERBENA_CHECK(request.key.size() == request.head.key_length);
  VERBENA_CHECK(has_key ? (scans || !request.key.empty()) && request.key.size() <= kMaxKeyBytes : request.key.empty());
  VERBENA_CHECK(request.value.size() < kEagerBytes && body.size() <= kMaxEagerBody);
  std::array<std::byte, 24> head;
  std::vector<std::byte> again;
  append(again, std::span(head).first(encode_head(request.head, request.expected, head, request.ttl_ns)));
  const Request::Large& large = request.large;
  if (request.head.op == Op::kPutRead) {
    VERBENA_CHECK(large.length >= kEagerBytes && large.length <= kMostValueBytes && request.value.empty());
    VERBENA_CHECK(large.address + large.length >= large.address);
    append(
        again,
        bytes_of(ReadHead{
            .expected = request.expected, .value_length = large.length, .address = large.address, .rkey = large.rkey}));
  }
  append(again, request.key);
  append(again, request.value);
  if (scans) append(again, bytes_of(request.scan));
  VERBENA_CHECK(same_bytes(again, body));
}

/// As a session takes it: into a buffer of the longest front, no more bytes than are asked for.
void check_large(Bytes message) {
  Tight buffer(kMaxLargeHeadBytes);
  std::size_t have = 0;
  LargeFront front;
  Status status = Status::kAgain;
  for (int round = 0; status == Status::kAgain; ++round) {
    VERBENA_CHECK(round < 4);  // The head, a time to live, the rest, and the answer.
    std::size_t needed = 0;
    status = decode_large(buffer.bytes().first(have), front, needed);
    VERBENA_CHECK(status == Status::kOk || status == Status::kAgain || status == Status::kProtocol);
    if (status != Status::kAgain) break;
    VERBENA_CHECK(needed > have && needed <= kMaxLargeHeadBytes);
    // One byte less is not enough.
    LargeFront early;
    std::size_t told = 0;
    const Tight less(message.first(std::min(needed - 1, message.size())));
    VERBENA_CHECK(decode_large(less.bytes(), early, told) == Status::kAgain && told <= needed);
    if (message.size() < needed) return;
    std::ranges::copy(message.subspan(have, needed - have), buffer.writable().begin() + static_cast<long>(have));
    have = needed;
  }
  LargeFront at_once;
  std::size_t needed = 0;
  VERBENA_CHECK(decode_large(message, at_once, needed) == status);
  if (status != Status::kOk) return;
  VERBENA_CHECK(needed == have && have <= message.size());
  std::vector<std::byte> again;
  append(again, bytes_of(front.head));
  if (front.head.op == Op::kPutLarge) {
    VERBENA_CHECK(front.large.value_length >= kEagerBytes && front.large.reserved == 0);
    VERBENA_CHECK(front.head.key_length >= 1 && front.head.key_length <= kMaxKeyBytes);
    if (front.ttl_ns != 0) append(again, bytes_of(front.ttl_ns));
    append(again, bytes_of(front.large));
    append(again, std::span(front.key).first(front.head.key_length));
  }
  VERBENA_CHECK(same_bytes(again, message.first(have)));
}

/// Of any part, whatever was asked for: what was not told is 0, and what was comes back.
void check_statistics(Bytes words) {
  for (std::uint64_t part = 0; part <= kStatisticsParts; ++part) {
    const auto statistics = std::make_unique<ServerStatistics>();
    take_words(words, static_cast<StatisticsPart>(part), *statistics);
    StatisticsWords again;
    const std::size_t known = put_words(*statistics, static_cast<StatisticsPart>(part), again);
    const std::size_t told = std::min(known, words.size() / sizeof(std::uint64_t));
    VERBENA_CHECK(same_bytes(std::as_bytes(std::span(again).first(told)), words.first(told * sizeof(std::uint64_t))));
    for (std::size_t i = told; i < known; ++i) VERBENA_CHECK(again[i] == 0);
  }
}

/// Keys are inside the page, and as many as it says.
void check_keys(const Reply& reply) {
  VERBENA_CHECK(reply.value.size() <= KeyPage::kBytes);
  std::uint32_t keys = 0;
  for (KeyIterator at(reply.value); at != KeyIterator(); ++at, ++keys)
    VERBENA_CHECK(is_inside(*at, reply.value) && !(*at).empty() && (*at).size() <= kMaxKeyBytes);
  VERBENA_CHECK(reply.value.empty() || keys == reply.scanned.count);
}

void check_reply(Bytes body) {
  Reply reply;
  const Status status = decode_reply(body, reply);
  VERBENA_CHECK(is_inside(reply.value, body));
  if (status != Status::kOk) {
    VERBENA_CHECK(status == Status::kProtocol);
    return;
  }
  const bool is_refusal = reply.head.status == Status::kDenied || reply.head.status == Status::kOverQuota;
  VERBENA_CHECK(reply.head.status <= Status::kSystem || is_refusal);
  VERBENA_CHECK(is_refusal == (reply.head.kind == ReplyKind::kRefusal));
  if (reply.head.entry != 0) {
    VERBENA_CHECK(reply.head.status == Status::kOk && Entry::unpack(reply.head.entry).lines != 0);
  }
  std::vector<std::byte> again;
  append(again, bytes_of(reply.head));
  VERBENA_CHECK((reply.head.flags == kTellsExpiry) == (reply.expiry.until_ns != 0));
  if (reply.head.flags != 0) append(again, bytes_of(reply.expiry));
  switch (reply.head.kind) {
    case ReplyKind::kPlain:
    case ReplyKind::kGoodbye: break;
    case ReplyKind::kValue: append(again, reply.value); break;
    case ReplyKind::kLocation:
      VERBENA_CHECK(reply.location.length >= kEagerBytes);
      VERBENA_CHECK(reply.location.address + reply.location.length >= reply.location.address);
      append(again, bytes_of(reply.location));
      break;
    case ReplyKind::kPart:
      VERBENA_CHECK(reply.part.length >= kEagerBytes && reply.part.length <= kMostValueBytes);
      VERBENA_CHECK(!reply.value.empty() && reply.value.size() <= kPartBytes);
      VERBENA_CHECK(reply.part.offset + reply.value.size() <= reply.part.length);
      append(again, bytes_of(reply.part));
      append(again, reply.value);
      break;
    case ReplyKind::kRefusal:
      VERBENA_CHECK(reply.refusal.right <= Rights::kAdminister && reply.refusal.quota <= 2);
      VERBENA_CHECK(reply.value.size() <= kMostPrefixBytes && reply.value.size() <= reply.refusal.prefix_length);
      append(again, bytes_of(reply.refusal));
      append(again, reply.value);
      break;
    case ReplyKind::kFull:
      VERBENA_CHECK(reply.head.status == Status::kStoreFull);
      append(again, bytes_of(reply.full));
      break;
    case ReplyKind::kScanned:
      check_keys(reply);
      append(again, bytes_of(reply.scanned));
      append(again, reply.value);
      break;
    case ReplyKind::kStatistics:
      append(again, reply.value);
      check_statistics(reply.value);
      break;
    case ReplyKind::kCell:
      VERBENA_CHECK(reply.cell.offset % 8 == 0 && reply.cell.window_address % 8 == 0);
      VERBENA_CHECK(reply.cell.window_length >= 8 && reply.cell.offset <= reply.cell.window_length - 8);
      VERBENA_CHECK(reply.cell.window_address + reply.cell.window_length >= reply.cell.window_address);
      append(again, bytes_of(reply.cell));
      break;
  }
  VERBENA_CHECK(same_bytes(again, body));
}

/// Handshakes have a magic number and a version to find: with the top bit of the first byte, the right ones stand in
/// front.
Tight hello_of(Bytes bytes, Form form) {
  Tight hello(bytes);
  const auto seal = [&](Bytes right) {
    std::memcpy(hello.writable().data(), right.data(), std::min(bytes.size(), right.size()));
  };
  const auto client = encode({});
  const ServerHello server;
  if (form == Form::kClientHello) seal(std::span(client).first(4));
  if (form == Form::kServerHello) seal(bytes_of(server).first(6));
  return hello;
}

void run(Input in) {
  const auto first = in.take<std::uint8_t>();
  const bool sealed = (first & 0x80) != 0;
  const auto form = static_cast<Form>((first & 0x7f) % static_cast<std::uint8_t>(Form::kEnd));
  const Tight copy = hello_of(in.rest(), sealed ? form : Form::kEnd);
  switch (form) {
    case Form::kClientHello: return check_client_hello(copy.bytes());
    case Form::kServerHello: return check_server_hello(copy.bytes());
    case Form::kRequest: return check_request(copy.bytes());
    case Form::kLarge: return check_large(copy.bytes());
    case Form::kReply: return check_reply(copy.bytes());
    case Form::kEnd: return;
  }
}

}  // namespace
}  // namespace verbena::fuzz::kv_wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::fuzz::kv_wire::run({data, size});
  return 0;
}
