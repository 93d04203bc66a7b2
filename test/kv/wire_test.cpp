#include "kv/wire.hpp"

#include "kv/index.hpp"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace verbena::kv::wire {
namespace {

using Bytes = std::vector<std::byte>;

template <class Frame>
void append(Bytes& out, const Frame& frame) {
  const auto bytes = bytes_of(frame);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

Bytes request(Op op, std::string_view key, std::string_view value, std::uint64_t expected = 0) {
  std::array<std::byte, 24> head;
  const RequestHead fields{.op = op, .key_length = static_cast<std::uint16_t>(key.size()), .id = 77};
  Bytes out(head.begin(), head.begin() + static_cast<std::ptrdiff_t>(encode_head(fields, expected, head)));
  std::memcpy(out.data(), head.data(), out.size());
  for (const char c : key) out.push_back(static_cast<std::byte>(c));
  for (const char c : value) out.push_back(static_cast<std::byte>(c));
  return out;
}

/// The same bytes in a block of exactly their size, so that a sanitizer sees any access past them.
struct Tight {
  explicit Tight(std::span<const std::byte> bytes) : size(bytes.size()), data(new std::byte[bytes.size()]) {
    if (size != 0) std::memcpy(data.get(), bytes.data(), size);
  }
  [[nodiscard]] std::span<const std::byte> span() const { return {data.get(), size}; }
  std::size_t size;
  std::unique_ptr<std::byte[]> data;
};

TEST(Wire, RequestsComeBack) {
  Request out;
  ASSERT_EQ(decode_request(request(Op::kGet, "key", ""), out), Status::kOk);
  EXPECT_EQ(out.head.op, Op::kGet);
  EXPECT_EQ(out.head.id, 77u);
  EXPECT_EQ(out.key.size(), 3u);

  const Bytes cas = request(Op::kCas, "key", "value", 42);
  ASSERT_EQ(decode_request(cas, out), Status::kOk);
  EXPECT_EQ(out.expected, 42u);
  EXPECT_EQ(out.value.size(), 5u);
  EXPECT_EQ(std::to_integer<char>(out.value[0]), 'v');

  const Bytes put = request(Op::kPut, "k", "");
  ASSERT_EQ(decode_request(put, out), Status::kOk);
  EXPECT_EQ(out.expected, kAnyVersion);
  EXPECT_TRUE(out.value.empty());

  EXPECT_EQ(request(Op::kGet, std::string(48, 'k'), "").size() + 8, 64u) << "a GET is one cache line";
}

TEST(Wire, CellsAreOpenedWithTheirInitialValue) {
  Request out;
  for (const std::uint64_t initial : {std::uint64_t{0}, std::uint64_t{42}, kAnyVersion}) {
    ASSERT_EQ(decode_request(request(Op::kCell, "key", "", initial), out), Status::kOk);
    EXPECT_EQ(out.head.op, Op::kCell);
    EXPECT_EQ(out.expected, initial);
    EXPECT_EQ(out.key.size(), 3u);
  }
  EXPECT_EQ(decode_request(request(Op::kCell, "key", "value"), out), Status::kProtocol);
  EXPECT_EQ(decode_request(request(Op::kCell, "", ""), out), Status::kBadKey);
}

TEST(Wire, ScansHaveAPrefixAndAPlace) {
  const ScanPlace at{.place = 3, .moves = 4, .seal = 5};
  const std::string place(reinterpret_cast<const char*>(&at), sizeof at);
  Request out;
  for (const Op op : {Op::kKeys, Op::kFlush}) {
    ASSERT_EQ(decode_request(request(op, "prefix", place), out), Status::kOk);
    EXPECT_EQ(out.head.op, op);
    EXPECT_EQ(out.key.size(), 6u);
    EXPECT_EQ(out.scan, at);
    EXPECT_TRUE(out.value.empty());
    EXPECT_EQ(decode_request(request(op, "", place), out), Status::kOk) << "all keys";
    EXPECT_EQ(decode_request(request(op, std::string(kMaxKeyBytes, 'k'), place), out), Status::kOk);
    EXPECT_EQ(decode_request(request(op, std::string(kMaxKeyBytes + 1, 'k'), place), out), Status::kBadKey);
    EXPECT_EQ(decode_request(request(op, "prefix", place + "x"), out), Status::kProtocol);
    const Bytes whole = request(op, "prefix", place);
    for (std::size_t length = 0; length < whole.size(); ++length)
      EXPECT_EQ(decode_request(Tight(std::span(whole).first(length)).span(), out), Status::kProtocol) << length;
  }
}

TEST(Wire, PagesOfKeysAreChecked) {
  const auto decode = [](const ScanPage& page, std::string_view keys, Reply& reply, Status status = Status::kOk) {
    Bytes bytes;
    append(bytes, ReplyHead{.status = status, .kind = ReplyKind::kScanned});
    append(bytes, page);
    for (const char c : keys) bytes.push_back(static_cast<std::byte>(c));
    return decode_reply(Tight(bytes).span(), reply);
  };
  const std::string two("\x01\0a\x03\0bcd", 8);
  const ScanPage good{.next = {.place = 9, .moves = 1, .seal = 7}, .count = 2};
  Reply reply;
  ASSERT_EQ(decode(good, two, reply), Status::kOk);
  EXPECT_EQ(reply.scanned.next, good.next);
  EXPECT_EQ(reply.value.size(), 8u);
  EXPECT_EQ(decode(good, "", reply), Status::kOk) << "two were erased";
  EXPECT_EQ(decode({}, "", reply), Status::kOk);
  EXPECT_EQ(decode(good, two, reply, Status::kNotFound), Status::kProtocol);
  EXPECT_EQ(decode({.next = good.next, .count = 1}, two, reply), Status::kProtocol);
  EXPECT_EQ(decode({.next = good.next, .count = 3}, two, reply), Status::kProtocol);
  EXPECT_EQ(decode({.next = good.next, .count = 2, .reserved = 1}, two, reply), Status::kProtocol);
  EXPECT_EQ(decode({.next = {.place = 9}, .count = 2}, two, reply), Status::kProtocol) << "an end that goes on";
  for (std::size_t length = 1; length < two.size(); ++length)
    EXPECT_EQ(decode(good, two.substr(0, length), reply), Status::kProtocol) << length;
  EXPECT_EQ(decode({.count = 1}, two.substr(0, 3), reply), Status::kOk);
  EXPECT_EQ(decode({.count = 1}, std::string_view("\0\0", 2), reply), Status::kProtocol) << "no key is empty";
  std::string longer("\x01\x04", 2);
  EXPECT_EQ(decode({.count = 1}, longer + std::string(kMaxKeyBytes + 1, 'k'), reply), Status::kProtocol);
  std::string most;
  for (std::size_t i = 0; i < KeyPage::kBytes / 8 + 1; ++i) most += std::string("\x06\0abcdef", 8);
  EXPECT_EQ(decode({.count = KeyPage::kBytes / 8}, most.substr(8), reply), Status::kOk);
  EXPECT_EQ(decode({.count = KeyPage::kBytes / 8 + 1}, most, reply), Status::kProtocol);
}

TEST(Wire, FullnessComesWithItsStatusOnly) {
  const auto decode = [](Status status, std::size_t bytes) {
    Bytes out;
    append(out, ReplyHead{.status = status, .kind = ReplyKind::kFull});
    append(out, Fullness{.needed = 5, .class_used = 7});
    out.resize(sizeof(ReplyHead) + bytes);
    Reply reply;
    const Status decoded = decode_reply(Tight(out).span(), reply);
    return decoded == Status::kOk && reply.full.needed == 5 && reply.full.class_used == 7;
  };
  EXPECT_TRUE(decode(Status::kStoreFull, sizeof(Fullness)));
  EXPECT_FALSE(decode(Status::kOk, sizeof(Fullness)));
  EXPECT_FALSE(decode(Status::kIndexFull, sizeof(Fullness)));
  EXPECT_FALSE(decode(Status::kStoreFull, sizeof(Fullness) - 1));
  EXPECT_FALSE(decode(Status::kStoreFull, sizeof(Fullness) + 1));
}

TEST(Wire, ReportsOfReadsAreANumber) {
  Request out;
  ASSERT_EQ(decode_request(request(Op::kReads, "", "", 4096), out), Status::kOk);
  EXPECT_EQ(out.expected, 4096u);
  EXPECT_EQ(decode_request(request(Op::kReads, "", "", kAnyVersion), out), Status::kProtocol);
  EXPECT_EQ(decode_request(request(Op::kReads, "k", "", 1), out), Status::kProtocol);
  EXPECT_EQ(decode_request(request(Op::kReads, "", "v", 1), out), Status::kProtocol);
}

TEST(Wire, PlacesOfCellsAreChecked) {
  const CellPlace good{.window_address = 4096,
                       .window_length = 640,
                       .window_memory = 3,
                       .window_rkey = 5,
                       .window_access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
                       .offset = 632,
                       .is_new = 1};
  const auto decode = [](const CellPlace& place, Status status, Reply& reply) {
    Bytes bytes;
    append(bytes, ReplyHead{.status = status, .kind = ReplyKind::kCell, .id = 5, .version = 8});
    append(bytes, place);
    return decode_reply(Tight(bytes).span(), reply);
  };
  Reply reply;
  ASSERT_EQ(decode(good, Status::kOk, reply), Status::kOk);
  EXPECT_EQ(reply.cell.offset, 632u);
  EXPECT_EQ(reply.cell.window_rkey, 5u);
  EXPECT_EQ(reply.cell.is_new, 1u);
  EXPECT_EQ(decode(good, Status::kNotFound, reply), Status::kProtocol);
  for (auto spoil : {+[](CellPlace& p) { p.offset = 640; }, +[](CellPlace& p) { p.offset = 636; },
                     +[](CellPlace& p) { p.offset = ~std::uint64_t{7}; }, +[](CellPlace& p) { p.window_address += 4; },
                     +[](CellPlace& p) { p.window_address = ~std::uint64_t{0} - 7; },
                     +[](CellPlace& p) { p.window_length = 7, p.offset = 0; },
                     +[](CellPlace& p) { p.window_length = 0, p.offset = 0; },
                     +[](CellPlace& p) { p.window_access = IBV_ACCESS_REMOTE_READ; },
                     +[](CellPlace& p) { p.window_access = IBV_ACCESS_REMOTE_ATOMIC; },
                     +[](CellPlace& p) { p.is_new = 2; }, +[](CellPlace& p) { p.reserved = 1; }}) {
    CellPlace bad = good;
    spoil(bad);
    EXPECT_EQ(decode(bad, Status::kOk, reply), Status::kProtocol);
  }
  Bytes bytes;
  append(bytes, ReplyHead{.kind = ReplyKind::kCell});
  append(bytes, good);
  bytes.pop_back();
  EXPECT_EQ(decode_reply(bytes, reply), Status::kProtocol);
}

TEST(Wire, BadRequestsAreTold) {
  Request out;
  EXPECT_EQ(decode_request(request(Op::kGet, "", ""), out), Status::kBadKey);
  EXPECT_EQ(out.head.id, 77u) << "so that the client can be answered";
  EXPECT_EQ(decode_request(request(Op::kGet, std::string(kMaxKeyBytes + 1, 'k'), ""), out), Status::kBadKey);
  EXPECT_EQ(decode_request(request(Op::kGet, std::string(kMaxKeyBytes, 'k'), ""), out), Status::kOk);
  EXPECT_EQ(decode_request(request(Op::kPut, "k", std::string(kEagerBytes, 'v')), out), Status::kTooLong);
  EXPECT_EQ(decode_request(request(Op::kPut, "k", std::string(kEagerBytes - 1, 'v')), out), Status::kOk);
  EXPECT_EQ(decode_request(request(Op::kGet, "k", "value"), out), Status::kProtocol);
  EXPECT_EQ(decode_request(request(Op::kErase, "k", "value"), out), Status::kProtocol);
  EXPECT_EQ(decode_request(request(Op::kStatistics, "k", ""), out), Status::kProtocol);
  EXPECT_EQ(decode_request(request(Op::kStatistics, "", ""), out), Status::kOk);
  EXPECT_EQ(decode_request(request(Op::kCas, "k", "v", kAnyVersion), out), Status::kProtocol);
  EXPECT_EQ(decode_request(request(Op::kPutLarge, "k", "v"), out), Status::kProtocol);
  EXPECT_EQ(decode_request(request(static_cast<Op>(0), "k", ""), out), Status::kProtocol);
  EXPECT_EQ(decode_request(request(static_cast<Op>(200), "k", ""), out), Status::kProtocol);
}

TEST(Wire, TruncatedRequestsAreRefused) {
  for (const Op op : {Op::kGet, Op::kPut, Op::kCas, Op::kErase, Op::kCell}) {
    const Bytes whole = request(op, "a key", "");
    for (std::size_t length = 0; length < whole.size(); ++length) {
      Request out;
      EXPECT_EQ(decode_request(Tight(std::span(whole).first(length)).span(), out), Status::kProtocol) << length;
    }
  }
}

// Operation 10 and reply 7 were of leases until 0.1.
TEST(Wire, WhatWasOfLeasesIsUnknown) {
  Bytes adopt;
  append(adopt, RequestHead{.op = Op{10}, .key_length = 1, .id = 5});
  append(adopt, std::array<std::uint64_t, 3>{kAnyVersion, 65'536, 3});
  adopt.push_back(std::byte{'k'});
  Request request;
  EXPECT_EQ(decode_request(adopt, request), Status::kProtocol);
  Bytes lease;
  append(lease, ReplyHead{.kind = ReplyKind{7}, .id = 5});
  append(lease, std::array<std::uint64_t, 4>{65'536, 65'536, 1, 1ULL << 32});
  Reply reply;
  EXPECT_EQ(decode_reply(lease, reply), Status::kProtocol);
  for (const std::uint64_t returned : {std::uint64_t{3}, std::uint64_t{1} << 63}) {
    Bytes large;
    append(large, RequestHead{.op = Op::kPutLarge, .key_length = 1, .id = 5});
    append(large, LargeHead{.expected = 9, .value_length = 1 << 20, .reserved = returned});
    large.push_back(std::byte{'k'});
    LargeFront front;
    std::size_t needed = 0;
    EXPECT_EQ(decode_large(large, front, needed), Status::kProtocol);
  }
}

TEST(Wire, LargeFrontsNeedAllTheirBytes) {
  Bytes whole;
  append(whole, RequestHead{.op = Op::kPutLarge, .key_length = 5, .id = 3});
  append(whole, LargeHead{.expected = 9, .value_length = 1 << 20});
  for (const char c : std::string("a key")) whole.push_back(static_cast<std::byte>(c));
  LargeFront front;
  std::size_t needed = 0;
  for (std::size_t length = 0; length < whole.size(); ++length) {
    ASSERT_EQ(decode_large(Tight(std::span(whole).first(length)).span(), front, needed), Status::kAgain) << length;
    ASSERT_GT(needed, length);
    ASSERT_LE(needed, whole.size());
  }
  ASSERT_EQ(decode_large(Tight(whole).span(), front, needed), Status::kOk);
  EXPECT_EQ(needed, whole.size());
  EXPECT_EQ(front.large.value_length, std::uint64_t{1} << 20);
  EXPECT_EQ(front.large.expected, 9u);
  EXPECT_EQ(std::memcmp(front.key.data(), "a key", 5), 0);

  Bytes more;
  append(more, RequestHead{.op = Op::kMoreLarge, .id = 3});
  EXPECT_EQ(decode_large(more, front, needed), Status::kOk);
  EXPECT_EQ(needed, sizeof(RequestHead));
}

TEST(Wire, BadLargeFrontsAreRefused) {
  LargeFront front;
  std::size_t needed = 0;
  const auto decode = [&](Op op, std::uint16_t key_length, std::uint64_t value_length) {
    Bytes bytes;
    append(bytes, RequestHead{.op = op, .key_length = key_length});
    append(bytes, LargeHead{.value_length = value_length});
    bytes.resize(bytes.size() + key_length);
    return decode_large(bytes, front, needed);
  };
  EXPECT_EQ(decode(Op::kPutLarge, 1, kEagerBytes), Status::kOk);
  EXPECT_EQ(decode(Op::kPutLarge, 0, kEagerBytes), Status::kProtocol);
  EXPECT_EQ(decode(Op::kPutLarge, kMaxKeyBytes, kEagerBytes), Status::kOk);
  EXPECT_EQ(decode(Op::kPutLarge, kMaxKeyBytes + 1, kEagerBytes), Status::kProtocol);
  EXPECT_EQ(decode(Op::kPutLarge, 1, kEagerBytes - 1), Status::kProtocol);
  EXPECT_EQ(decode(Op::kPut, 1, kEagerBytes), Status::kProtocol);
  EXPECT_EQ(decode(Op::kMoreLarge, 1, kEagerBytes), Status::kProtocol);
}

TEST(Wire, RepliesComeBack) {
  Reply reply;
  Bytes bytes;
  append(bytes, ReplyHead{.status = Status::kVersionMismatch, .id = 5, .version = 8});
  ASSERT_EQ(decode_reply(bytes, reply), Status::kOk);
  EXPECT_EQ(reply.head.status, Status::kVersionMismatch);
  EXPECT_EQ(reply.head.version, 8u);

  bytes.clear();
  append(bytes, ReplyHead{.kind = ReplyKind::kLocation, .id = 5, .version = 8});
  append(bytes, Location{.address = 4096, .length = 8192, .rkey = 3, .checksum = 7});
  ASSERT_EQ(decode_reply(bytes, reply), Status::kOk);
  EXPECT_EQ(reply.location.length, 8192u);
  EXPECT_EQ(reply.location.checksum, 7u);
  bytes.pop_back();
  EXPECT_EQ(decode_reply(bytes, reply), Status::kProtocol);

  bytes.clear();
  append(bytes, ReplyHead{.kind = ReplyKind::kLocation});
  append(bytes, Location{.address = ~std::uint64_t{0} - 5, .length = 8192});
  EXPECT_EQ(decode_reply(bytes, reply), Status::kProtocol) << "wraps around the address space";

  bytes.clear();
  append(bytes, ReplyHead{.status = Status::kNotFound, .kind = ReplyKind::kValue});
  EXPECT_EQ(decode_reply(bytes, reply), Status::kProtocol);
  bytes.clear();
  append(bytes, ReplyHead{.status = static_cast<Status>(250)});
  EXPECT_EQ(decode_reply(bytes, reply), Status::kProtocol);
  bytes.clear();
  append(bytes, ReplyHead{.kind = ReplyKind::kValue});
  bytes.resize(bytes.size() + kEagerBytes);
  EXPECT_EQ(decode_reply(bytes, reply), Status::kProtocol);
}

TEST(Wire, EntriesComeWithSuccessOnly) {
  const auto decode = [](Status status, std::uint64_t entry) {
    Reply reply;
    Bytes bytes;
    append(bytes, ReplyHead{.status = status, .entry = entry});
    return decode_reply(bytes, reply) == Status::kOk && reply.head.entry == entry;
  };
  const std::uint64_t entry = Entry{.tag = 0, .lines = 1, .line = 0}.pack();
  EXPECT_TRUE(decode(Status::kOk, 0));
  EXPECT_TRUE(decode(Status::kOk, entry));
  EXPECT_TRUE(decode(Status::kNotFound, 0));
  EXPECT_FALSE(decode(Status::kNotFound, entry));
  EXPECT_FALSE(decode(Status::kOk, 5)) << "an item without a cache line";
}

TEST(Wire, HellosAreChecked) {
  const ClientHello client{.worker = 1,
                           .client = kMostClient,
                           .depth = 32,
                           .flags = kReadOnly,
                           .source = {.address = 1 << 20, .memory_id = kMostMemoryId, .rkey = 0x80000100}};
  EXPECT_EQ(decode_client_hello(encode(client)), client);
  Bytes sized;
  append(sized, encode(client));
  sized.resize(kClientHelloBytes - 1);
  EXPECT_FALSE(decode_client_hello(sized));
  sized.resize(kClientHelloBytes + 1);
  EXPECT_FALSE(decode_client_hello(sized));
  for (const auto spoil : {+[](ClientHello& c) { c.version = kVersion - 1; }, +[](ClientHello& c) { c.client = 0; },
                           +[](ClientHello& c) { c.depth = 0; }, +[](ClientHello& c) { c.flags = kClientFlags + 1; },
                           +[](ClientHello& c) { c.source.memory_id = 0; }}) {
    ClientHello bad = client;
    spoil(bad);
    EXPECT_FALSE(decode_client_hello(encode(bad)));
  }
  ClientHello lends_nothing = client;
  lends_nothing.source = {};
  EXPECT_EQ(decode_client_hello(encode(lends_nothing)), lends_nothing);

  const ServerHello good{.workers = 2,
                         .depth = 32,
                         .max_key_bytes = kMaxKeyBytes,
                         .max_value_bytes = 1,
                         .grace_ns = 1,
                         .window_length = index_bytes(100),
                         .index_buckets = 100};
  EXPECT_TRUE(decode_server_hello(bytes_of(good)));
  for (auto spoil :
       {+[](ServerHello& h) { h.workers = 0; }, +[](ServerHello& h) { h.workers = 65; },
        +[](ServerHello& h) { h.depth = 0; }, +[](ServerHello& h) { h.magic = 0; },
        +[](ServerHello& h) { h.grace_ns = 0; }, +[](ServerHello& h) { h.max_value_bytes = ~std::uint64_t{0}; },
        +[](ServerHello& h) { h.grace_ns = wire::kMostGraceNs + 1; },
        +[](ServerHello& h) { h.window_address = ~std::uint64_t{0}, h.window_length = 2; },
        +[](ServerHello& h) { h.window_length = kMaxWindowBytes + 1; },
        +[](ServerHello& h) { h.window_length = index_bytes(100) - 1; }, +[](ServerHello& h) { h.index_buckets = 0; },
        +[](ServerHello& h) { h.index_buckets = 99; }, +[](ServerHello& h) { h.index_buckets = ~std::uint64_t{1}; },
        +[](ServerHello& h) { h.flags = 1u << 31; }, +[](ServerHello& h) { h.marks_rkey = 1; },
        +[](ServerHello& h) { h.marks_memory = 1; }, +[](ServerHello& h) { h.marks_address = ~std::uint64_t{0} - 8; },
        +[](ServerHello& h) { h.version = 1; }}) {
    ServerHello bad = good;
    spoil(bad);
    EXPECT_FALSE(decode_server_hello(bytes_of(bad)));
  }
}

TEST(Wire, AHelloWithoutAWindowHasNothingOfOne) {
  const ServerHello good{.workers = 2,
                         .depth = 32,
                         .max_key_bytes = kMaxKeyBytes,
                         .max_value_bytes = 1,
                         .grace_ns = 1,
                         .flags = kByMessage};
  EXPECT_TRUE(decode_server_hello(bytes_of(good)));
  for (auto spoil : {+[](ServerHello& h) { h.flags = 0; }, +[](ServerHello& h) { h.window_address = 64; },
                     +[](ServerHello& h) { h.window_length = 64; }, +[](ServerHello& h) { h.window_memory = 1; },
                     +[](ServerHello& h) { h.window_rkey = 1; }, +[](ServerHello& h) { h.window_access = 1; },
                     +[](ServerHello& h) { h.index_buckets = 2; }}) {
    ServerHello bad = good;
    spoil(bad);
    EXPECT_FALSE(decode_server_hello(bytes_of(bad)));
  }
}

TEST(Wire, PartsHaveAsManyBytesAsTheyMust) {
  const auto decode = [](const Part& part, std::size_t bytes, Status status = Status::kOk) {
    Bytes body;
    append(body, ReplyHead{.status = status, .kind = ReplyKind::kPart, .version = 3});
    append(body, part);
    body.resize(body.size() + bytes);
    Reply reply;
    return decode_reply(body, reply);
  };
  EXPECT_EQ(decode({.length = 100'000, .offset = 0}, kPartBytes), Status::kOk);
  EXPECT_EQ(decode({.length = 4100, .offset = kPartBytes}, 4100 - kPartBytes), Status::kOk);
  EXPECT_EQ(decode({.length = 100'000, .offset = 0}, kPartBytes - 1), Status::kProtocol);
  EXPECT_EQ(decode({.length = 100'000, .offset = 0}, kPartBytes + 1), Status::kProtocol);
  EXPECT_EQ(decode({.length = 100'000, .offset = 0}, 0), Status::kProtocol);
  EXPECT_EQ(decode({.length = 100'000, .offset = 100'000}, 0), Status::kProtocol);
  EXPECT_EQ(decode({.length = 100'000, .offset = ~std::uint64_t{0}}, 1), Status::kProtocol);
  EXPECT_EQ(decode({.length = kEagerBytes - 1, .offset = 0}, kPartBytes), Status::kProtocol);
  EXPECT_EQ(decode({.length = kMostValueBytes + 1, .offset = 0}, kPartBytes), Status::kProtocol);
  EXPECT_EQ(decode({.length = 100'000, .offset = 0}, kPartBytes, Status::kNotFound), Status::kProtocol);
}

TEST(Wire, RefusalsAreOfTheirStatusesOnly) {
  const auto decode = [](const Refusal& refusal, std::size_t prefix, Status status) {
    Bytes body;
    append(body, ReplyHead{.status = status, .kind = ReplyKind::kRefusal});
    append(body, refusal);
    body.resize(body.size() + prefix);
    Reply reply;
    return decode_reply(body, reply);
  };
  const Refusal good{.uid = 1, .right = Rights::kRead, .prefixes = 1, .prefix_length = 100};
  EXPECT_EQ(decode(good, kMostPrefixBytes, Status::kDenied), Status::kOk);
  EXPECT_EQ(decode(good, kMostPrefixBytes, Status::kOverQuota), Status::kOk);
  for (const Status status : {Status::kOk, Status::kNotFound, Status::kForked, Status::kSystem})
    EXPECT_EQ(decode(good, kMostPrefixBytes, status), Status::kProtocol) << to_string(status);
  EXPECT_EQ(decode(good, kMostPrefixBytes + 1, Status::kDenied), Status::kProtocol);
  EXPECT_EQ(decode(good, kMostPrefixBytes - 1, Status::kDenied), Status::kProtocol);
  for (auto spoil : {+[](Refusal& r) { r.right = static_cast<Rights>(5); }, +[](Refusal& r) { r.quota = 3; },
                     +[](Refusal& r) { r.prefix_length = kMaxKeyBytes + 1; }, +[](Refusal& r) { r.is_promised = 2; },
                     +[](Refusal& r) { r.reserved = 1; }}) {
    Refusal bad = good;
    spoil(bad);
    EXPECT_EQ(decode(bad, kMostPrefixBytes, Status::kDenied), Status::kProtocol);
  }
  for (const ReplyKind kind : {ReplyKind::kPlain, ReplyKind::kValue, ReplyKind::kLocation}) {
    Bytes body;
    append(body, ReplyHead{.status = Status::kDenied, .kind = kind});
    Reply reply;
    EXPECT_EQ(decode_reply(body, reply), Status::kProtocol);
  }
}

TEST(Wire, ValuesToReadAreChecked) {
  const ReadHead good{.expected = 9, .value_length = kEagerBytes, .address = 1 << 20, .rkey = 5};
  const auto decode = [](const ReadHead& read, std::string_view key, std::string_view behind, Request& out) {
    Bytes body;
    append(body, RequestHead{.op = Op::kPutRead, .key_length = static_cast<std::uint16_t>(key.size()), .id = 5});
    append(body, read);
    for (const char c : key) body.push_back(static_cast<std::byte>(c));
    for (const char c : behind) body.push_back(static_cast<std::byte>(c));
    return decode_request(body, out);
  };
  Request out;
  ASSERT_EQ(decode(good, "key", "", out), Status::kOk);
  EXPECT_EQ(out.key.size(), 3u);
  EXPECT_EQ(out.expected, 9u);
  EXPECT_EQ(out.large.length, kEagerBytes);
  EXPECT_EQ(out.large.address, std::uint64_t{1} << 20);
  EXPECT_EQ(out.large.rkey, 5u);
  EXPECT_EQ(decode(good, "key", "value", out), Status::kProtocol);
  EXPECT_EQ(decode(good, "", "", out), Status::kBadKey);
  for (const auto spoil :
       {+[](ReadHead& r) { r.value_length = kEagerBytes - 1; }, +[](ReadHead& r) { r.value_length = 0; },
        +[](ReadHead& r) { r.value_length = kMostValueBytes + 1; }, +[](ReadHead& r) { r.reserved = 1; },
        +[](ReadHead& r) { r.address = ~r.value_length + 1; }}) {
    ReadHead bad = good;
    spoil(bad);
    EXPECT_EQ(decode(bad, "key", "", out), Status::kProtocol);
  }
  ReadHead last = good;
  last.address = ~last.value_length;
  EXPECT_EQ(decode(last, "key", "", out), Status::kOk);
}

TEST(Wire, RandomBytesHurtNobody) {
  std::mt19937_64 random(11);
  unsigned accepted = 0;
  for (int i = 0; i < 50'000; ++i) {
    Bytes bytes(random() % 120);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    // Half of them start like something that makes sense.
    if (i % 2 == 0 && bytes.size() >= 4) {
      bytes[0] = static_cast<std::byte>(random() % 10);
      bytes[1] = std::byte{0};
      bytes[2] = static_cast<std::byte>(random() % 40);
      bytes[3] = std::byte{0};
    }
    const Tight tight(bytes);
    Request request;
    LargeFront front;
    Reply reply;
    std::size_t needed = 0;
    if (decode_request(tight.span(), request) == Status::kOk) {
      ++accepted;
      EXPECT_LE(request.key.size() + request.value.size() + sizeof(RequestHead), bytes.size());
    }
    if (decode_large(tight.span(), front, needed) == Status::kOk) {
      EXPECT_LE(needed, bytes.size());
    }
    (void)decode_reply(tight.span(), reply);
    (void)decode_client_hello(tight.span());
    (void)decode_server_hello(tight.span());
  }
  EXPECT_GT(accepted, 100u);
}

}  // namespace
}  // namespace verbena::kv::wire
