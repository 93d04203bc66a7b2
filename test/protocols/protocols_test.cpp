// The bytes that two releases may exchange, and the words that two processes share, against golden.txt: what changes
// there without a new version would be misread by the other release, where a new version is refused with a typed error.
//
// A line is `protocol version name: bytes in hex` or, of shared memory, `: member=offset ... size=bytes`. Where the
// test fails, raise the protocol's version, and put the lines that the test prints into golden.txt.
#include "base/mac.hpp"
#include "channel/wire.hpp"
#include "kv/index.hpp"
#include "kv/item.hpp"
#include "kv/wire.hpp"
#include "link/cm/private_data.hpp"
#include "link/frames.hpp"
#include "link/seal.hpp"
#include "nic/soft/layout.hpp"
#include "paths.hpp"
#include "programs/perf_wire.hpp"
#include "session/physical_table.hpp"
#include "session/wire.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace verbena {
namespace {

/// Name with protocol and version, and what is pinned.
using Lines = std::map<std::string, std::string>;

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}
template <class T>
std::string hex_of(const T& value) {
  return hex(std::as_bytes(std::span(&value, 1)));
}

link::Endpoint endpoint() {
  link::Endpoint endpoint;
  for (std::size_t i = 0; i < sizeof endpoint.qp.gid.raw; ++i)
    endpoint.qp.gid.raw[i] = static_cast<std::uint8_t>(0xa0 + i);
  endpoint.qp.qp_num = 0x010203;
  endpoint.qp.psn = 0x040506;
  endpoint.qp.lid = 0x0708;
  endpoint.qp.mtu = IBV_MTU_4096;
  endpoint.qp.max_rd_atomic = 16;
  endpoint.recv_depth = 68;
  endpoint.generation = 0x1112131415161718;
  const std::array user = {std::byte{0x21}, std::byte{0x22}, std::byte{0x23}};
  EXPECT_EQ(endpoint.set_user_data(user), Status::kOk);
  return endpoint;
}

void add_handshakes(Lines& lines) {
  const auto link = [&](const char* name, std::span<const std::byte> bytes) {
    lines[fmt::format("link {} {}", link::kProtocolVersion, name)] = hex(bytes);
  };
  const link::Endpoint local = endpoint();
  link("hello", link::encode_hello(local).bytes());
  link("reject", link::encode_reject(Status::kLimit, "full").bytes());
  link("ready", link::encode_ready(local.generation).bytes());
  link::Nonce nonce{};
  for (std::size_t i = 0; i < nonce.size(); ++i) nonce[i] = static_cast<std::byte>(0xb0 + i);
  const link::Frame key = link::encode_key("name", nonce);
  link("key", key.bytes());
  // Without libsodium there are no seals to pin.
  if (check_mac()) {
    const std::array<std::byte, link::kMinSecretBytes> secret{std::byte{1}, std::byte{2}};
    link::Seal seal(std::make_shared<link::Key>("name", secret), key.bytes());
    link("sealed_challenge", seal.put(link::SealedStep::kChallenge, link::encode_challenge(nonce)).bytes());
    link("sealed_hello", seal.put(link::SealedStep::kClientHello, link::encode_hello(local)).bytes());
    link("sealed_answer", seal.put(link::SealedStep::kServerHello, link::encode_hello(local)).bytes());
    link("sealed_ready", seal.put(link::SealedStep::kClientReady, link::encode_ready(local.generation)).bytes());
    link("sealed_ready_too", seal.put(link::SealedStep::kServerReady, link::encode_ready(local.generation)).bytes());
  }
  link("blob", link::export_blob(local));
  link("cm_hello", link::cm::encode_cm_hello(local).bytes());
  link("cm_reject", link::cm::encode_cm_reject(Status::kLimit, "full").bytes());
}

void add_connections(Lines& lines) {
  const auto hello = channel::wire::encode(
      {.depth = 64,
       .eager_bytes = 5248,
       .first_count = 3,
       .lease = {.address = 4096, .length = 1 << 20, .rkey = 7, .access = IBV_ACCESS_REMOTE_WRITE}});
  const std::span<const std::byte> bytes = hello.bytes();
  lines[fmt::format("channel {} hello", static_cast<unsigned>(bytes[1]) & 0xfU)] = hex(bytes);
  const auto session = session::wire::encode(
      {.inbox_bytes = session::wire::kMinInboxBytes,
       .window = {.address = 4096, .length = 1 << 20, .rkey = 0x80000001, .access = 0, .memory_id = 7}});
  lines[fmt::format("session {} hello", static_cast<unsigned>(session[1]))] = hex(session);
  lines[fmt::format("session {} found", static_cast<unsigned>(session[1]))] = hex(session::wire::encode_found(
      {.address = 1, .length = 2, .memory_id = 4, .rkey = 3, .access = rdma::Access::kAll}));
  const auto table = session::PhysicalTable::make({{.address = 0x200000, .length = 0x200000, .rkey = 1}},
                                                  session::PhysicalTable::kRights, 1);
  ASSERT_TRUE(table);
  const std::vector<std::byte> encoded = table->encode();
  lines[fmt::format("physical {} table", static_cast<unsigned>(encoded[4]))] = hex(encoded);
}

void add_store(Lines& lines) {
  using namespace kv::wire;
  const auto add = [&](const char* name, const std::string& text) {
    lines[fmt::format("kv {} {}", kVersion, name)] = text;
  };
  add("client_hello", hex(encode({.worker = 1,
                                  .client = 5,
                                  .depth = 16,
                                  .flags = kReadOnly,
                                  .source = {.address = 1 << 20, .memory_id = 7, .rkey = 0x80000100}})));
  add("server_hello", hex_of(ServerHello{.workers = 2,
                                         .server = 9,
                                         .depth = 16,
                                         .max_key_bytes = kv::kMaxKeyBytes,
                                         .max_value_bytes = 1 << 20,
                                         .grace_ns = 1'000'000,
                                         .window_address = 1 << 20,
                                         .window_length = 1 << 21,
                                         .window_memory = 1,
                                         .window_rkey = 0x80000100,
                                         .window_access = 2,
                                         .hash_seed = 77,
                                         .index_buckets = 34,
                                         .marks_rkey = 0x80000200,
                                         .marks_address = 1 << 16,
                                         .marks_memory = 2}));
  add("request", hex_of(RequestHead{.op = Op::kCas, .key_length = 3, .id = 7}));
  add("expiry", hex_of(Expiry{.clock_ns = 5, .until_ns = 6}));
  add("large", hex_of(LargeHead{.expected = 1, .value_length = 2, .reserved = 3}));
  add("read", hex_of(ReadHead{.expected = 1, .value_length = 2, .address = 3, .rkey = 4, .reserved = 5}));
  add("reply", hex_of(ReplyHead{.status = Status::kNotFound, .kind = ReplyKind::kValue, .id = 7, .version = 3}));
  add("location", hex_of(Location{.address = 1 << 20, .length = 100'000, .rkey = 1}));
  add("part", hex_of(Part{.length = 100'000, .offset = kPartBytes}));
  add("refusal", hex_of(Refusal{.uid = 1,
                                .right = kv::Rights::kWrite,
                                .quota = 2,
                                .prefixes = 3,
                                .prefix_length = 4,
                                .is_promised = 1,
                                .used = 5,
                                .most = 6}));
  add("item", hex_of(kv::ItemHeader{.state = kv::state_word(kv::ItemState::kLive, 9), .checksum = 1, .shape = 2}));
  add("entry", hex_of(kv::Entry{.tag = 5, .lines = 2, .line = 70}.pack()));
}

/// Its server and its clients are one release as a rule, and say so where they are not.
void add_perf(Lines& lines) {
  using namespace programs;
  const perf_wire::Request request{.test = PerfTest::kWriteBw, .connections = 64, .bytes = 65536};
  lines[fmt::format("perf {} request", perf_wire::kVersion)] = hex_of(request);
  lines[fmt::format("perf {} reply", perf_wire::kVersion)] = hex_of(perf_wire::Reply{.physical = 4096, .others = 1});
}

#define VERBENA_AT(type, member) fmt::format(#member "={} ", offsetof(type, member))

/// Memory that the processes of two releases on one host would share.
void add_soft_nic(Lines& lines) {
  using namespace nic::soft;
  const auto add = [&](const char* name, std::size_t size, const std::string& members) {
    lines[fmt::format("soft {} {}", kLayoutVersion, name)] = fmt::format("{}size={}", members, size);
  };
  add("key", sizeof(KeyEntry),
      VERBENA_AT(KeyEntry, live) + VERBENA_AT(KeyEntry, domain) + VERBENA_AT(KeyEntry, access) +
          VERBENA_AT(KeyEntry, iova) + VERBENA_AT(KeyEntry, length) + VERBENA_AT(KeyEntry, memory_id) +
          VERBENA_AT(KeyEntry, memory_offset));
  add("control", sizeof(QpControl),
      VERBENA_AT(QpControl, rare.readiness) + VERBENA_AT(QpControl, rare.wake) +
          VERBENA_AT(QpControl, rare.min_receive) + VERBENA_AT(QpControl, consumer.consumed) +
          VERBENA_AT(QpControl, receives.posted) + VERBENA_AT(QpControl, receives.refused) +
          VERBENA_AT(QpControl, access.word) + VERBENA_AT(QpControl, demand.wanted) +
          VERBENA_AT(QpControl, demand.ask));
  add("slot", sizeof(Slot), VERBENA_AT(Slot, header) + VERBENA_AT(Slot, details) + VERBENA_AT(Slot, payload));
  add("service", sizeof(ServiceBlock),
      VERBENA_AT(ServiceBlock, ask.number) + VERBENA_AT(ServiceBlock, ask.op) + VERBENA_AT(ServiceBlock, ask.rkey) +
          VERBENA_AT(ServiceBlock, ask.address) + VERBENA_AT(ServiceBlock, ask.length) +
          VERBENA_AT(ServiceBlock, ask.compare_add) + VERBENA_AT(ServiceBlock, ask.swap) +
          VERBENA_AT(ServiceBlock, answer.number) + VERBENA_AT(ServiceBlock, answer.answer) +
          VERBENA_AT(ServiceBlock, answer.old) + VERBENA_AT(ServiceBlock, written) + VERBENA_AT(ServiceBlock, read));
  add("request", sizeof(Request),
      VERBENA_AT(Request, magic) + VERBENA_AT(Request, version) + VERBENA_AT(Request, type) +
          VERBENA_AT(Request, my_qp) + VERBENA_AT(Request, my_gid) + VERBENA_AT(Request, your_qp) +
          VERBENA_AT(Request, pd) + VERBENA_AT(Request, access) + VERBENA_AT(Request, ready_bit) +
          VERBENA_AT(Request, min_rnr_timer) + VERBENA_AT(Request, bell_count) + VERBENA_AT(Request, memory_id) +
          VERBENA_AT(Request, geometry) + VERBENA_AT(Request, has_srq) + VERBENA_AT(Request, qp_type) +
          VERBENA_AT(Request, bells) + VERBENA_AT(Request, attested_bytes));
  add("reply", sizeof(Reply),
      VERBENA_AT(Reply, magic) + VERBENA_AT(Reply, version) + VERBENA_AT(Reply, answer) +
          VERBENA_AT(Reply, key_entries) + VERBENA_AT(Reply, gid) + VERBENA_AT(Reply, size) +
          VERBENA_AT(Reply, writable) + VERBENA_AT(Reply, is_populated));
  const QpGeometry geometry{.receive_entries = 64, .slots = 32, .data_bytes = 65536};
  add("geometry", geometry.total_bytes(),
      fmt::format("lengths={} slots={} data={} service={} ", geometry.lengths_offset(), geometry.slots_offset(),
                  geometry.data_offset(), geometry.service_offset()));
}

TEST(Protocols, AreWhatTheirVersionsSay) {
  Lines now;
  add_handshakes(now);
  ASSERT_NO_FATAL_FAILURE(add_connections(now));
  add_store(now);
  add_perf(now);
  add_soft_nic(now);
  Lines golden;
  const std::string page = test::path_in("VERBENA_GOLDEN");
  std::ifstream file(page);
  ASSERT_TRUE(file) << page;
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (!line.starts_with('#') && colon != std::string::npos) golden[line.substr(0, colon)] = line.substr(colon + 2);
  }
  for (const auto& [name, bytes] : now)
    EXPECT_EQ(golden[name], bytes) << "changed, or of a new version: " << name << ": " << bytes;
  const bool has_keys = check_mac().has_value();
  for (const auto& [name, bytes] : golden)
    EXPECT_TRUE(now.contains(name) || (!has_keys && name.find(" sealed_") != std::string::npos))
        << "no version has it any more: " << name;
}

}  // namespace
}  // namespace verbena
