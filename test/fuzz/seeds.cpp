// Writes the seeds of each corpus, from frames that are well-formed today; --check tells of those that are not written
// as they would be now.
// usage: fuzz_seeds [--check] CORPUS_DIRECTORY
#include "channel/wire.hpp"
#include "input.hpp"
#include "kv/index.hpp"
#include "kv/item.hpp"
#include "kv/wire.hpp"
#include "link/cm/private_data.hpp"
#include "link/frames.hpp"
#include "nic/soft/layout.hpp"
#include "programs/perf_wire.hpp"
#include "session/physical_table.hpp"
#include "session/wire.hpp"

#include <concepts>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::fuzz {
namespace {

/// An input, built from its front.
class Seed {
 public:
  explicit Seed(std::integral auto... bytes) { (u8(bytes), ...); }
  Seed& u8(std::integral auto value) { return put(static_cast<std::uint8_t>(value)); }
  template <class T>
  Seed& put(const T& value) {
    return bytes(std::as_bytes(std::span(&value, 1)));
  }
  Seed& bytes(Bytes more) {
    for (const std::byte byte : more) data_.push_back(static_cast<char>(byte));
    return *this;
  }
  Seed& text(std::string_view more) { return bytes(std::as_bytes(std::span(more))); }
  [[nodiscard]] const std::vector<char>& data() const noexcept { return data_; }

 private:
  std::vector<char> data_;
};

struct Named {
  std::string path;
  Seed seed;
};
using Seeds = std::vector<Named>;

void add_link_frames(Seeds& out) {
  link::Endpoint endpoint;
  endpoint.qp = {.gid = {}, .qp_num = 17, .psn = 0x123456, .lid = 0, .mtu = IBV_MTU_4096, .max_rd_atomic = 16};
  endpoint.recv_depth = 68;
  endpoint.generation = 0x0123456789abcdef;
  const auto hello = link::encode_hello(endpoint);
  VERBENA_CHECK(endpoint.set_user_data(Tight(link::kMaxPrivateBytes).bytes()) == Status::kOk);
  const auto longest = link::encode_hello(endpoint);
  const auto reject = link::encode_reject(Status::kLimit, "the server is full");
  const auto ready = link::encode_ready(endpoint.generation);
  const auto blob = link::export_blob(endpoint);
  const auto key = link::encode_key("a-key", {std::byte{1}});
  const auto challenge = link::with_room_for_seal(link::encode_challenge({std::byte{2}}));
  const auto body = [](const link::Frame& frame) {
    return frame.bytes().subspan(link::kHeaderBytes, frame.size - link::kHeaderBytes - link::kChecksumBytes);
  };
  // The first byte is the target's Form; a sealed one has type, reserved byte and body.
  out.push_back({"link_frames/hello", Seed(0).bytes(hello.bytes())});
  out.push_back({"link_frames/hello_longest", Seed(0).bytes(longest.bytes())});
  out.push_back({"link_frames/reject", Seed(0).bytes(reject.bytes())});
  out.push_back({"link_frames/ready", Seed(0).bytes(ready.bytes())});
  out.push_back({"link_frames/hello_sealed", Seed(1, 1, 0).bytes(body(hello))});
  auto reserved = hello;  // The fourth byte of a HELLO's body.
  reserved.data[link::kHeaderBytes + 3] = std::byte{1};
  out.push_back({"link_frames/hello_reserved", Seed(1, 1, 0).bytes(body(reserved))});
  out.push_back({"link_frames/reject_sealed", Seed(1, 2, 0).bytes(body(reject))});
  out.push_back({"link_frames/ready_sealed", Seed(1, 3, 0).bytes(body(ready))});
  out.push_back({"link_frames/key", Seed(0).bytes(key.bytes())});
  out.push_back({"link_frames/key_sealed", Seed(1, 4, 0).bytes(body(key))});
  out.push_back({"link_frames/challenge_sealed", Seed(1, 5, 1).bytes(body(challenge))});
  out.push_back({"link_frames/hello_with_seal", Seed(1, 1, 1).bytes(body(link::with_room_for_seal(longest)))});
  out.push_back({"link_frames/ready_with_seal", Seed(1, 3, 1).bytes(body(link::with_room_for_seal(ready)))});
  out.push_back({"link_frames/stream_whole", Seed(2, 255).bytes(hello.bytes())});
  out.push_back({"link_frames/stream_by_byte_and_more", Seed(2, 0).bytes(reject.bytes()).bytes(ready.bytes())});
  out.push_back({"link_frames/stream_ends_early", Seed(2, 6).bytes(hello.bytes().first(40))});
  out.push_back({"link_frames/stream_sealed", Seed(3, 10, 2, 0).bytes(body(reject))});
  out.push_back({"link_frames/blob", Seed(4).bytes(blob)});
  out.push_back({"link_frames/blob_sealed", Seed(5, 0, 0, 0, 0, 1, 0).bytes(body(hello))});
  out.push_back({"link_frames/blob_padding", Seed(5, 0, 0, 0, 1, 1, 0).bytes(body(hello))});
}

void add_link_keys(Seeds& out) {
  out.push_back({"link_keys/two", Seed().text("# two\none 000102030405060708090a0b0c0d0e0f\n"
                                              "two AAECAwQFBgcICQoLDA0OD/8= # more\n")});
  out.push_back({"link_keys/unpadded", Seed().text("a.b-c_d\tAAECAwQFBgcICQoLDA0OD/8\r\n")});
  out.push_back({"link_keys/wrong_digit", Seed().text("one 000102030405060708090a0b0c0d0e0f!\n")});
  out.push_back({"link_keys/twice", Seed().text("one 000102030405060708090a0b0c0d0e0f\none AAECAwQFBgcICQoLDA0OD/8=")});
}

void add_link_cm_private_data(Seeds& out) {
  link::Endpoint endpoint;
  endpoint.recv_depth = 68;
  endpoint.generation = 0x0123456789abcdef;
  const auto plain = link::cm::encode_cm_hello(endpoint);
  VERBENA_CHECK(endpoint.set_user_data(Tight(link::kMaxCmAnswerBytes).bytes()) == Status::kOk);
  const auto longest = link::cm::encode_cm_hello(endpoint);
  const auto reject = link::cm::encode_cm_reject(Status::kLimit, "the server is full");
  out.push_back({"link_cm_private_data/hello", Seed(0).bytes(plain.bytes())});
  out.push_back({"link_cm_private_data/hello_longest", Seed(0).bytes(longest.bytes())});
  out.push_back({"link_cm_private_data/hello_padded", Seed(0).bytes(plain.bytes()).bytes(Tight(40).bytes())});
  out.push_back({"link_cm_private_data/hello_fields", Seed(1).bytes(plain.bytes().subspan(3))});
  out.push_back({"link_cm_private_data/reject", Seed(0).bytes(reject.bytes())});
  out.push_back({"link_cm_private_data/reject_fields", Seed(1).bytes(reject.bytes().subspan(3))});
}

void add_channel_wire(Seeds& out) {
  using namespace channel;
  const auto plain = wire::encode({.depth = 64, .eager_bytes = 5248, .first_count = 0, .lease = {}});
  const auto with_lease =
      wire::encode({.depth = wire::kMaxDepth,
                    .eager_bytes = wire::kMaxEagerBytes,
                    .first_count = ~0U,
                    .lease = {.address = 4096, .length = 1 << 20, .rkey = 1, .access = IBV_ACCESS_REMOTE_WRITE}});
  out.push_back({"channel_wire/plain", Seed(0).bytes(plain.bytes())});
  out.push_back({"channel_wire/with_lease", Seed(0).bytes(with_lease.bytes())});
  out.push_back({"channel_wire/with_user_data", Seed(0).bytes(plain.bytes()).text("user data")});
  out.push_back({"channel_wire/fields", Seed(1).bytes(with_lease.bytes().subspan(2))});
  out.push_back({"channel_wire/reserved", Seed(1).bytes(plain.bytes().subspan(2)).text("!")});
  out.push_back({"channel_wire/places", Seed(2).put(100U).put(16U).put(17U).put(99U).put(63U).put(1U).put(40U)});
}

void add_session_wire(Seeds& out) {
  namespace wire = session::wire;
  const auto plain = wire::encode({.inbox_bytes = wire::kMinInboxBytes, .window = {}});
  const auto with_window = wire::encode(
      {.inbox_bytes = wire::kMaxInboxBytes,
       .window = {.address = 4096, .length = wire::kMaxWindowBytes, .rkey = 0x80000001, .access = 0, .memory_id = 7}});
  out.push_back({"session_wire/plain", Seed(0).bytes(plain)});
  out.push_back({"session_wire/with_window", Seed(0).bytes(with_window)});
  out.push_back({"session_wire/fields", Seed(1).bytes(std::span(with_window).subspan(2))});
  out.push_back({"session_wire/found",
                 Seed(2).bytes(wire::encode_found(
                     {.address = 1, .length = 2, .memory_id = 4, .rkey = 3, .access = rdma::Access::kAll}))});
  out.push_back({"session_wire/inbox", Seed(3)
                                           .put(std::uint16_t{500})
                                           .put(std::uint16_t{401})
                                           .put(std::uint16_t{400})
                                           .put(std::uint16_t{3})
                                           .put(std::uint16_t{601})
                                           .put(std::uint16_t{0})});
}

void add_perf_wire(Seeds& out) {
  using namespace programs;
  const perf_wire::Request request{.test = PerfTest::kWriteBw, .connections = 64, .bytes = 65536};
  const perf_wire::Request most{
      .test = PerfTest::kReadBw, .connections = perf_wire::kMaxConnections, .bytes = kPerfMostWindow};
  perf_wire::Request too_much = most;
  too_much.test = PerfTest::kMessageBw;  // A message is not that long.
  const perf_wire::Reply reply{.physical = 4096}, refusal{.refusal = {'n', 'o'}};
  const auto behind_front = [](const auto& message) { return perf_wire::bytes_of(message).subspan(4); };
  out.push_back({"perf_wire/request", Seed(0).put(request)});
  out.push_back({"perf_wire/request_most", Seed(0).put(most)});
  out.push_back({"perf_wire/request_too_much", Seed(0).put(too_much)});
  out.push_back({"perf_wire/request_fields", Seed(1).bytes(behind_front(request))});
  out.push_back({"perf_wire/reply", Seed(0).put(reply)});
  out.push_back({"perf_wire/reply_refusal", Seed(0).put(refusal)});
  out.push_back({"perf_wire/reply_fields", Seed(1).bytes(behind_front(reply))});
}

void add_remote_physical(Seeds& out) {
  using session::PhysicalTable;
  const auto encoded = [](std::vector<session::PhysicalRun> runs) {
    const auto table = PhysicalTable::make(std::move(runs), PhysicalTable::kRights, 1);
    VERBENA_CHECK(table.has_value());
    return table->encode();
  };
  constexpr std::uint64_t kHuge = std::uint64_t{2} << 20;
  const std::vector<std::byte> one = encoded({{.address = kHuge, .length = kHuge, .rkey = 1}});
  const std::vector<std::byte> several = encoded({{.address = 0x1000, .length = 0x1000, .rkey = 1},
                                                  {.address = 0x2000, .length = 0x800, .rkey = 2},
                                                  {.address = 0x8000, .length = kHuge, .rkey = 3},
                                                  {.address = ~kHuge, .length = kHuge, .rkey = 4}});
  // Behind magic number and version, and without the checksum.
  const auto fields = [](Bytes bytes) { return bytes.subspan(6, bytes.size() - 6 - PhysicalTable::kChecksumBytes); };
  out.push_back({"session_physical/one", Seed(0).bytes(one)});
  out.push_back({"session_physical/several", Seed(0).bytes(several)});
  out.push_back({"session_physical/one_sealed", Seed(1).bytes(fields(one))});
  out.push_back({"session_physical/several_sealed", Seed(1).bytes(fields(several))});
  Seed runs(2);
  runs.put(PhysicalTable::kRights);
  for (const std::uint16_t address : std::initializer_list<std::uint16_t>{300, 100, 200, 500})
    runs.put(address).u8(100);
  out.push_back({"session_physical/runs", runs});
  out.push_back({"session_physical/runs_overlap", runs.put(std::uint16_t{599}).u8(1)});
}

void add_kv_wire_hellos(Seeds& out) {
  using namespace kv::wire;
  out.push_back({"kv_wire/client_hello", Seed(0).put(encode({.client = 5, .depth = 16}))});
  out.push_back({"kv_wire/client_hello_sealed", Seed(0x80 + 0x7d).put(encode({.client = 5, .depth = 16}))});
  const ClientHello lending{
      .client = 5, .depth = 16, .source = {.address = 1 << 20, .memory_id = 7, .rkey = 0x80000100}};
  out.push_back({"kv_wire/client_hello_source", Seed(0).put(encode(lending))});
  const ServerHello server{.workers = 2,
                           .server = 9,
                           .depth = 16,
                           .max_key_bytes = kv::kMaxKeyBytes,
                           .max_value_bytes = 1 << 20,
                           .grace_ns = 1'000'000,
                           .window_address = 1 << 20,
                           .window_length = 1 << 20,
                           .window_memory = 1,
                           .window_rkey = 0x80000100,
                           .window_access = 0,
                           .hash_seed = 77,
                           .index_buckets = 34};
  out.push_back({"kv_wire/server_hello", Seed(1).put(server)});
  ServerHello odd = server;
  odd.index_buckets = 33;
  out.push_back({"kv_wire/server_hello_odd_index", Seed(1).put(odd)});
  ServerHello small = server;
  small.window_length = kv::index_bytes(34) - 1;
  out.push_back({"kv_wire/server_hello_index_outside", Seed(1).put(small)});
  out.push_back(
      {"kv_wire/client_hello_read_only", Seed(0).put(encode({.client = 5, .depth = 16, .flags = kReadOnly}))});
  ServerHello by_message{.workers = 2,
                         .server = 9,
                         .depth = 16,
                         .max_key_bytes = kv::kMaxKeyBytes,
                         .max_value_bytes = 1 << 20,
                         .grace_ns = 1'000'000,
                         .hash_seed = 77,
                         .flags = kByMessage};
  out.push_back({"kv_wire/server_hello_by_message", Seed(1).put(by_message)});
  by_message.window_rkey = 1;
  out.push_back({"kv_wire/server_hello_by_message_with_a_window", Seed(1).put(by_message)});
}

void add_kv_wire(Seeds& out) {
  using namespace kv::wire;
  const auto front = [](unsigned form, Op op, std::size_t key) {
    return Seed(form).put(RequestHead{.op = op, .key_length = static_cast<std::uint16_t>(key), .id = 7});
  };
  const std::string longest(kv::kMaxKeyBytes, 'k');
  const std::string value(kv::kEagerBytes, 'v');
  out.push_back({"kv_wire/keys", front(2, Op::kKeys, 2).text("p/").put(ScanPlace{.place = 3, .seal = 5})});
  out.push_back({"kv_wire/keys_longest", front(2, Op::kKeys, kv::kMaxKeyBytes).text(longest).put(ScanPlace{})});
  out.push_back({"kv_wire/flush_all", front(2, Op::kFlush, 0).put(ScanPlace{})});
  out.push_back({"kv_wire/reads", front(2, Op::kReads, 0).put(std::uint64_t{4096})});
  out.push_back({"kv_wire/get_part", front(2, Op::kGetPart, 3).put(std::uint64_t{kPartBytes}).text("key")});
  out.push_back({"kv_wire/get", front(2, Op::kGet, 3).text("key")});
  out.push_back({"kv_wire/get_longest_key", front(2, Op::kGet, longest.size()).text(longest)});
  out.push_back({"kv_wire/put", front(2, Op::kPut, 3).text("key").text("value")});
  out.push_back({"kv_wire/put_too_long", front(2, Op::kPut, 3).text("key").text(value)});
  out.push_back({"kv_wire/cas", front(2, Op::kCas, 3).put(std::uint64_t{42}).text("key").text("value")});
  out.push_back({"kv_wire/cell", front(2, Op::kCell, 3).put(std::uint64_t{42}).text("key")});
  out.push_back({"kv_wire/erase", front(2, Op::kErase, 3).text("key")});
  out.push_back({"kv_wire/statistics", front(2, Op::kStatistics, 0).put(std::uint64_t{2})});
  out.push_back({"kv_wire/goodbye", front(2, Op::kGoodbye, 0)});
  const LargeHead large{.expected = kAnyVersion, .value_length = 100'000};
  out.push_back({"kv_wire/put_large", front(3, Op::kPutLarge, 3).put(large).text("key").text("value")});
  const auto with_ttl = [](unsigned form, Op op) {
    const RequestHead head{.op = op, .flags = kHasTtl, .key_length = 3, .id = 7};
    return Seed(form).put(head).put(std::uint64_t{1'000'000'000});
  };
  out.push_back({"kv_wire/put_ttl", with_ttl(2, Op::kPut).text("key").text("value")});
  out.push_back({"kv_wire/put_large_ttl", with_ttl(3, Op::kPutLarge).put(large).text("key").text("value")});
  out.push_back({"kv_wire/put_large_half_a_key", front(3, Op::kPutLarge, 3).put(large).text("k")});
  out.push_back({"kv_wire/put_large_longest_key", front(3, Op::kPutLarge, longest.size()).put(large).text(longest)});
  out.push_back({"kv_wire/more_large", front(3, Op::kMoreLarge, 0).text("value")});
  const std::array<std::uint64_t, 3> adopt{kAnyVersion, 100'000, 1};
  out.push_back({"kv_wire/put_adopt", front(2, Op{10}, 3).put(adopt).text("key")});  // Unknown since 0.1.
  const ReadHead read{.expected = kAnyVersion, .value_length = 100'000, .address = 1 << 20, .rkey = 1};
  out.push_back({"kv_wire/put_read", front(2, Op::kPutRead, 3).put(read).text("key")});
  out.push_back({"kv_wire/put_read_ttl", with_ttl(2, Op::kPutRead).put(read).text("key")});
  out.push_back({"kv_wire/put_read_cut", front(2, Op::kPutRead, 3).put(read)});
  const ReadHead around{.value_length = 100'000, .address = ~std::uint64_t{0} - 99'999};
  out.push_back({"kv_wire/put_read_around_the_end", front(2, Op::kPutRead, 3).put(around).text("key")});
}

void add_kv_wire_replies(Seeds& out) {
  using namespace kv::wire;
  out.push_back({"kv_wire/reply", Seed(4).put(ReplyHead{.status = Status::kNotFound, .id = 7})});
  out.push_back({"kv_wire/reply_value", Seed(4).put(ReplyHead{.kind = ReplyKind::kValue, .version = 3}).text("value")});
  const ReplyHead made{.version = 9, .entry = kv::Entry{.tag = 5, .lines = 2, .line = 70}.pack()};
  out.push_back({"kv_wire/reply_entry", Seed(4).put(made)});
  out.push_back({"kv_wire/reply_entry_of_nothing", Seed(4).put(ReplyHead{.version = 9, .entry = 1})});
  out.push_back({"kv_wire/reply_location", Seed(4)
                                               .put(ReplyHead{.kind = ReplyKind::kLocation, .version = 3})
                                               .put(Location{.address = 1 << 20, .length = 100'000, .rkey = 1})});
  out.push_back({"kv_wire/reply_lease", Seed(4)  // Unknown since 0.1.
                                            .put(ReplyHead{.kind = ReplyKind{7}, .version = 3})
                                            .put(std::array<std::uint64_t, 4>{1 << 20, 65'536, 1'000'000'000, 1})});
  out.push_back({"kv_wire/reply_statistics",
                 Seed(4).put(ReplyHead{.kind = ReplyKind::kStatistics}).put(std::array<std::uint64_t, 3>{1, 2, 3})});
  out.push_back(
      {"kv_wire/reply_cell", Seed(4)
                                 .put(ReplyHead{.kind = ReplyKind::kCell, .version = 3})
                                 .put(CellPlace{.window_address = 1 << 20,
                                                .window_length = 640,
                                                .window_memory = 2,
                                                .window_rkey = 0x80000200,
                                                .window_access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
                                                .offset = 64,
                                                .is_new = 1})});
  const ScanPage two_keys{.next = {.place = 9, .moves = 1, .seal = 7}, .count = 2};
  out.push_back({"kv_wire/reply_keys", Seed(4)
                                           .put(ReplyHead{.kind = ReplyKind::kScanned})
                                           .put(two_keys)
                                           .put(std::uint16_t{1})
                                           .text("a")
                                           .put(std::uint16_t{3})
                                           .text("bcd")});
  out.push_back(
      {"kv_wire/reply_erased", Seed(4).put(ReplyHead{.kind = ReplyKind::kScanned}).put(ScanPage{.count = 512})});
  out.push_back({"kv_wire/reply_full", Seed(4)
                                           .put(ReplyHead{.status = Status::kStoreFull, .kind = ReplyKind::kFull})
                                           .put(Fullness{.needed = 5, .capacity = 9})});
  const std::string part(kPartBytes, 'p');
  out.push_back({"kv_wire/reply_part", Seed(4)
                                           .put(ReplyHead{.kind = ReplyKind::kPart, .version = 3})
                                           .put(Part{.length = 100'000, .offset = kPartBytes})
                                           .text(part)});
  out.push_back({"kv_wire/reply_part_last", Seed(4)
                                                .put(ReplyHead{.kind = ReplyKind::kPart, .version = 3})
                                                .put(Part{.length = 4100, .offset = 4096})
                                                .text("last")});
  out.push_back({"kv_wire/reply_denied",
                 Seed(4)
                     .put(ReplyHead{.status = Status::kDenied, .kind = ReplyKind::kRefusal})
                     .put(Refusal{.uid = 7, .right = kv::Rights::kRead, .prefixes = 1, .prefix_length = 2})
                     .text("p/")});
  out.push_back(
      {"kv_wire/reply_over_quota", Seed(4)
                                       .put(ReplyHead{.status = Status::kOverQuota, .kind = ReplyKind::kRefusal})
                                       .put(Refusal{.uid = 7, .quota = 1, .used = 100, .most = 64})});
  out.push_back({"kv_wire/reply_denied_plainly", Seed(4).put(ReplyHead{.status = Status::kDenied})});
  out.push_back({"kv_wire/reply_goodbye", Seed(4).put(ReplyHead{.kind = ReplyKind::kGoodbye})});
}

void add_kv_item(Seeds& out) {
  using namespace kv;
  // Form, then as the target takes them: a window's length, a version, and a key of its own by length.
  const auto judged = [](unsigned form, std::uint64_t window) {
    return Seed(form).put(window).put(std::uint64_t{9}).u8(2).text("key");
  };
  const auto item = [](const Seed& front, std::size_t key, std::uint64_t value, unsigned flags) {
    const ItemShape shape{.value_length = value, .key_length = key, .flags = flags};
    return Seed(front).put(ItemHeader{.state = state_word(ItemState::kLive, 9), .shape = shape.pack()});
  };
  const std::string_view key("key\0\0\0\0\0", 8);
  const ValuePlace place{.offset = 4096, .checksum = 1};
  out.push_back({"kv_item/torn", item(judged(0, 1 << 20), 3, 5, 0).text(key).text("value")});
  out.push_back({"kv_item/small", item(judged(1, 1 << 20), 3, 5, 0).text(key).text("value")});
  out.push_back({"kv_item/empty", item(judged(1, 1 << 20), 3, 0, 0).text(key)});
  out.push_back({"kv_item/cut", item(judged(1, 1 << 20), 3, 50, 0).text(key).text("value")});
  out.push_back({"kv_item/large", item(judged(1, 1 << 20), 3, 10'000, kHasValueChecksum).text(key).put(place)});
  out.push_back({"kv_item/large_outside", item(judged(1, 12'000), 3, 10'000, 0).text(key).put(place)});
  out.push_back({"kv_item/unknown_flag", item(judged(1, 1 << 20), 3, 5, 8).text(key).text("value")});
  const auto built = [](unsigned is_large, std::uint32_t flip) {
    return Seed(2).put(std::uint64_t{77}).put(flip).put(std::uint16_t{33}).u8(is_large);
  };
  out.push_back(
      {"kv_item/built", built(0, 300).put(place).put(std::uint16_t{2}).text("key").text("a value of some length")});
  out.push_back({"kv_item/built_note", built(0, 70).put(place).put(std::uint16_t{2}).text("key").text("value")});
  out.push_back({"kv_item/built_large", built(1, 9).put(place).put(std::uint16_t{2}).text("key").text("value")});
  const auto index = [](std::uint64_t word, std::uint64_t window, std::uint64_t hash, std::uint64_t items) {
    return Seed(3).put(word).put(window).put(hash).u8(3).put(items);
  };
  const std::uint64_t entry = Entry{.tag = 77, .lines = 3, .line = 1000}.pack();
  out.push_back({"kv_item/index", index(entry, 1 << 20, 0x123456789abcdef0, 1000)});
  out.push_back({"kv_item/index_outside", index(entry, 64'000, ~std::uint64_t{0}, kMaxItems - 1)});
  out.push_back({"kv_item/index_end", index(~std::uint64_t{0}, kMaxWindowBytes, 0, 0)});
}

using nic::soft::kMostDataBytes;
using nic::soft::QpGeometry;
using nic::soft::SlotFlags;

void add_soft_ring(Seeds& out) {
  constexpr std::uint64_t kWrap = (std::uint64_t{1} << 32) - 2;
  // A consumer's slots: header (odd: the right index; kind in its low byte), length, front of the payload.
  const auto slot = [](Seed& seed, std::uint32_t flags, std::uint32_t length, std::uint64_t position) {
    seed.put(1U | flags << 8).put(length).put(position);
  };
  Seed in_slot = Seed(0, 1, 2).put(std::uint64_t{0});
  slot(in_slot, 0, 112, 0);
  slot(in_slot, 0, 113, 0);
  Seed in_data = Seed(0, 0, 8).put(kWrap);
  slot(in_data, SlotFlags::kInData, 4096, 0);
  slot(in_data, SlotFlags::kInData, 4096, 12288);
  slot(in_data, SlotFlags::kInData, 4096, 12289);
  slot(in_data, SlotFlags::kInData, ~0U, ~std::uint64_t{0});
  out.push_back({"soft_ring/consumer_in_slot", in_slot});
  out.push_back({"soft_ring/consumer_in_data", in_data});
  // Both: below 0x80 sends as many bytes as follow, then receives; 0xff lies.
  Seed honest = Seed(1, 0, 0).put(kWrap);
  for (unsigned i = 0; i < 8; ++i) honest.u8(i).put(static_cast<std::uint16_t>(512 * i)).u8(0x80);
  Seed full = Seed(1, 3, 0).put(std::uint64_t{0});
  for (unsigned i = 0; i < 6; ++i) full.u8(i).put(std::uint16_t{4096});
  Seed lied = full;
  lied.u8(0xff).put(~std::uint64_t{0}).u8(1).put(std::uint16_t{4096}).u8(0xfe).u8(2).u8(1).put(std::uint16_t{4096});
  out.push_back({"soft_ring/both_honest", honest});
  out.push_back({"soft_ring/both_full", full});
  out.push_back({"soft_ring/both_lied_to", lied});
  // Words as they are loaded: header, length above the immediate, position.
  Seed changing = Seed(3, 0, 2);
  const auto load = [&](std::uint32_t index, std::uint64_t flags, std::uint64_t length, std::uint64_t position) {
    changing.put(index | flags << 40).put(length << 32).put(position);
  };
  load(1, SlotFlags::kInData, 64, 0);
  load(2, SlotFlags::kInData, 64, 255);
  load(3, SlotFlags::kInData, 0xFFFFFFFF, ~std::uint64_t{0});
  out.push_back({"soft_ring/changing", changing});
  const QpGeometry geometry{.receive_entries = 128, .slots = 128, .data_bytes = 1 << 19};
  const QpGeometry largest{.receive_entries = 1 << 16, .slots = 1 << 17, .data_bytes = kMostDataBytes};
  out.push_back({"soft_ring/geometry", Seed(2).put(geometry).u8(0).u8(1).u8(14)});
  out.push_back({"soft_ring/geometry_largest", Seed(2).put(largest).u8(16).u8(17).u8(24)});
  out.push_back({"soft_ring/geometry_too_large", Seed(2).put(QpGeometry{}).u8(17).u8(18).u8(25)});
}

/// The steps of soft_rendezvous, by the numbers that its Op has.
class Conversation {
 public:
  Conversation& hello() { return step(0); }
  /// `lies`: a bit for each thing that is not as it should be.
  Conversation& offer(unsigned lies = 0, const QpGeometry* geometry = nullptr) {
    step(1).seed_.u8(lies).u8(1).u8(7).put(3U).put(12U);
    geometry != nullptr ? seed_.put(*geometry) : seed_.u8(4).u8(3).u8(0).put(std::uint64_t{0});
    return *this;
  }
  Conversation& memory(unsigned which) { return step(2, which); }
  Conversation& wake() { return step(3); }
  Conversation& raw(unsigned length) { return step(5, length); }
  Conversation& receive(std::uint16_t length) {
    step(6).seed_.put(length);
    return *this;
  }
  Conversation& send(std::uint16_t length) {
    step(7).seed_.put(length);
    return *this;
  }
  Conversation& slot(nic::soft::SlotKind kind, unsigned flags, std::uint32_t length, std::uint64_t position = 0) {
    step(8).seed_.u8(0).u8(static_cast<unsigned>(kind)).u8(flags).put(length).put(position);
    return *this;
  }
  Conversation& word(unsigned at, std::uint64_t value) {
    step(9).seed_.u8(at).put(value);
    return *this;
  }
  Conversation& poll() { return step(10); }
  /// About as many times 8 bytes.
  Conversation& confirm(unsigned words) { return step(11, words); }
  [[nodiscard]] const Seed& seed() const noexcept { return seed_; }

 private:
  Conversation& step(std::integral auto... bytes) {
    (seed_.u8(bytes), ...);
    return *this;
  }
  Seed seed_;
};

void add_soft_rendezvous(Seeds& out) {
  using nic::soft::SlotKind;
  constexpr unsigned kWhole = SlotFlags::kFirst | SlotFlags::kLast;
  const auto add = [&](std::string_view name, const Conversation& conversation) {
    out.push_back({"soft_rendezvous/" + std::string(name), conversation.seed()});
  };
  const auto met = [] { return Conversation().hello().offer().poll(); };
  add("hello", Conversation().hello().hello().wake().memory(0).memory(1).memory(2));
  add("without_hello", Conversation().memory(0).offer().hello().offer());
  add("wake_without_hello", Conversation().wake().hello().wake());
  add("confirm", Conversation().hello().confirm(0).confirm(1).confirm(255));
  add("confirm_without_hello", Conversation().confirm(4).hello().confirm(4));
  add("raw", Conversation().raw(0).raw(sizeof(nic::soft::Request) - 2).raw(sizeof(nic::soft::Request)).raw(255));
  for (unsigned bit = 0; bit < 8; ++bit)
    add("offer_lie_" + std::to_string(bit),
        Conversation().hello().receive(512).offer(bit == 3 ? 0 : 1U << bit).poll().offer().poll());
  const QpGeometry impossible{.receive_entries = 1, .slots = 3, .data_bytes = 1 << 14};
  const QpGeometry unaligned{.receive_entries = 1, .slots = 16, .data_bytes = 1 << 14, .reserved = 1, .start = 8};
  add("geometry_impossible", Conversation().hello().offer(8, &impossible).poll());
  add("geometry_start", Conversation().hello().offer(8, &unaligned).poll());
  add("message", met().receive(512).slot(SlotKind::kSend, kWhole, 100).poll());
  add("message_in_data", met().receive(4096).slot(SlotKind::kSendImm, kWhole | SlotFlags::kInData, 4096, 64).poll());
  add("message_too_long", met().receive(99).slot(SlotKind::kSend, kWhole, 100).poll());
  add("message_outside_the_ring",
      met().receive(4096).slot(SlotKind::kSend, kWhole | SlotFlags::kInData, 4096, (1 << 14) - 4095).poll());
  add("message_without_receive", met().slot(SlotKind::kSend, kWhole, 100).poll());
  add("segments", met()
                      .receive(8000)
                      .slot(SlotKind::kSend, SlotFlags::kFirst | SlotFlags::kInData, 4096)
                      .slot(SlotKind::kSend, SlotFlags::kLast, 100)
                      .poll());
  add("segment_short", met()
                           .receive(8000)
                           .slot(SlotKind::kSend, SlotFlags::kFirst, 100)
                           .slot(SlotKind::kSend, SlotFlags::kLast, 100)
                           .poll());
  add("write_imm", met().receive(0).slot(SlotKind::kWriteImm, kWhole, ~0U).poll());
  for (const SlotKind kind : {SlotKind::kNone, SlotKind::kLengthError, SlotKind::kRemoteError, SlotKind::kReceiveError})
    add("slot_kind_" + std::to_string(static_cast<unsigned>(kind)), met().receive(64).slot(kind, kWhole, 8).poll());
  // Words 0, 8, 16, 24, 32: readiness and wake, consumed, posted, access, lengths of receives.
  add("send", met().word(1, 4096).word(32, 4096).word(16, 2).word(0, 1).send(100).send(2001).poll());
  add("send_to_no_length", met().word(32, 10).word(16, 2).word(0, 1).send(100).poll());
  add("send_consumed_lie", met().word(1, ~0ULL).word(16, 100).word(0, 1).word(8, ~0ULL).send(9000).send(9000).poll());
  add("gone", met().word(0, 2).send(8).receive(8).poll());
}

void add_channel_connection(Seeds& out) {
  // Steps: 0 eager (lies, length), 1 fragment (lies, length of the whole and of the piece, then the lies), 2 the victim
  // sends, 3 posts receives again, 4 polls.
  const auto eager = [](Seed& seed, unsigned lies, unsigned length) -> Seed& { return seed.u8(0).u8(lies).u8(length); };
  const auto fragment = [](Seed& seed, unsigned lies, std::uint16_t total, std::uint16_t piece) -> Seed& {
    seed.u8(1).u8(lies);
    if (total != 0) seed.put(total);
    return seed.put(piece);
  };
  Seed honest;
  for (unsigned i = 0; i < 16; ++i) eager(honest, 0, 16 * i).u8(2).u8(i).u8(4).u8(3);
  Seed update;
  eager(eager(update, 0, 0), 0, 255).u8(4);
  Seed whole;
  eager(fragment(whole, 0, 99, 500), 0, 10);
  fragment(whole, 0, 63, 63).u8(4);
  Seed pieces;
  fragment(pieces, 0, 999, 99);
  fragment(eager(pieces, 0, 10), 0, 0, 899);
  Seed wraps;
  fragment(wraps, 0, 2500, 1000);
  for (int i = 0; i < 3; ++i) fragment(wraps, 0, 0, 1000);
  // A total below the piece's own length, under the immediate of a message that goes on.
  Seed shrunk;
  fragment(shrunk, 4 | 8, 99, 98).put(std::uint64_t{3}).put(channel::wire::kFirst).u8(4);
  out.push_back({"channel_connection/total_too_small", shrunk});
  out.push_back({"channel_connection/honest", honest});
  out.push_back({"channel_connection/update", update});
  out.push_back({"channel_connection/whole", whole});
  out.push_back({"channel_connection/pieces", pieces});
  out.push_back({"channel_connection/more_than_the_lease", wraps});
  for (unsigned bit = 0; bit < 4; ++bit) {
    Seed seed;
    out.push_back({"channel_connection/eager_lie_" + std::to_string(bit), eager(seed, 1U << bit, 50).put(5U).u8(4)});
  }
  for (unsigned bit = 0; bit < 6; ++bit) {
    Seed seed;
    out.push_back({"channel_connection/fragment_lie_" + std::to_string(bit),
                   fragment(seed, 1U << bit, 99, 500).put(std::uint64_t{3}).u8(4)});
  }
}

/// Whether the file holds the seed, written or checked.
bool settle(const std::filesystem::path& file, const Seed& seed, bool check) {
  if (!check) {
    std::filesystem::create_directories(file.parent_path());
    std::ofstream out(file, std::ios::binary);
    out.write(seed.data().data(), static_cast<std::streamsize>(seed.data().size()));
    out.close();
    return !out.fail();
  }
  std::ifstream in(file, std::ios::binary);
  return in && std::vector<char>{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()} == seed.data();
}

}  // namespace
}  // namespace verbena::fuzz

int main(int argc, char** argv) {
  using namespace verbena::fuzz;
  const bool check = argc == 3 && std::string_view(argv[1]) == "--check";
  if ((argc != 2 && !check) || argv[argc - 1][0] == '-') {
    std::fprintf(stderr, "usage: %s [--check] CORPUS_DIRECTORY\n", argv[0]);
    return 2;
  }
  Seeds seeds;
  add_kv_wire_hellos(seeds);
  add_kv_wire(seeds);
  add_kv_wire_replies(seeds);
  add_kv_item(seeds);
  add_session_wire(seeds);
  add_link_frames(seeds);
  add_link_keys(seeds);
  add_channel_connection(seeds);
  add_link_cm_private_data(seeds);
  add_channel_wire(seeds);
  add_perf_wire(seeds);
  add_remote_physical(seeds);
  add_soft_rendezvous(seeds);
  add_soft_ring(seeds);
  int failed = 0;
  for (const auto& [path, seed] : seeds) {
    // Told apart from what the fuzzer found, whose names begin otherwise.
    const auto file = std::filesystem::path(argv[argc - 1]) / std::filesystem::path(path).parent_path() /
                      ("seed-" + std::filesystem::path(path).filename().string());
    if (settle(file, seed, check)) continue;
    std::fprintf(stderr, "%s: %s\n", file.c_str(), check ? "not as fuzz_seeds writes it now" : "cannot be written");
    failed = 1;
  }
  return failed;
}
