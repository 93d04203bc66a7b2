// What a hostile client can do to a server and to its other clients: nothing but lose its own connection.
#include "kv/item.hpp"
#include "peer.hpp"
#include "process.hpp"
#include "raw_client.hpp"

#include <verbena/kv.hpp>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace verbena::kv {
namespace {

using namespace std::chrono_literals;
using namespace testing_support;
using wire::Op;

constexpr std::uint64_t kAnyVersion = wire::kAnyVersion;

std::vector<std::byte> put_large(std::string_view key, std::uint64_t length) {
  return RawClient::pack(head(Op::kPutLarge, key.size()),
                         wire::LargeHead{.expected = kAnyVersion, .value_length = length}, key);
}

std::vector<std::byte> put_read(std::string_view key, std::uint64_t length, std::uint64_t address, std::uint32_t rkey) {
  return RawClient::pack(
      head(Op::kPutRead, key.size()),
      wire::ReadHead{.expected = kAnyVersion, .value_length = length, .address = address, .rkey = rkey}, key);
}

/// A server with an honest client, whose values nobody may touch.
class Hostile : public testing::Test {
 protected:
  static constexpr std::size_t kLarge = std::size_t{1} << 20;

  void begin(ServerOptions options = small_server()) {
    options.max_clients = 16;
    server_ = start(options);
    ASSERT_TRUE(server_);
    witness_ = connect(client_options(*server_));
    ASSERT_TRUE(witness_);
    large_ = std::string(kLarge, 'w');
    for (std::size_t i = 0; i < large_.size(); ++i) large_[i] = static_cast<char>(i * 31 + i / 4096);
    put_witness();
  }
  void put_witness() {
    ASSERT_EQ(witness_->put(key_of("small"), bytes_of("of the witness")).status, Status::kOk);
    ASSERT_EQ(witness_->put(key_of("large"), bytes_of(large_)).status, Status::kOk);
  }
  std::string get(std::string_view key) {
    out_.resize(std::size_t{5} << 20);
    const Outcome outcome = witness_->get(key_of(key), std::as_writable_bytes(std::span(out_)));
    return outcome.status == Status::kOk ? out_.substr(0, outcome.length) : to_string(outcome.status);
  }
  /// The witness's values are as it put them, and the server serves it and strangers.
  void expect_whole() {
    EXPECT_EQ(get("small"), "of the witness");
    EXPECT_TRUE(get("large") == large_);
    ASSERT_NO_FATAL_FAILURE(put_witness());
    EXPECT_EQ(witness_->connection_error().status(), Status::kOk);
  }
  /// The server ends the connection of a client that is still there: its end notices nothing by itself.
  void expect_thrown_out(RawClient& raw) {
    ++thrown_out_;
    EXPECT_TRUE(eventually([&] { return raw.poll(), server_->statistics().clients_lost >= thrown_out_; }));
  }
  [[nodiscard]] RawClient intruder() { return RawClient(server_->port()); }
  /// Everybody but the witness is gone, and has left nothing behind.
  void expect_nothing_left() {
    ASSERT_EQ(witness_->erase(key_of("small")).status, Status::kOk);
    ASSERT_EQ(witness_->erase(key_of("large")).status, Status::kOk);
    witness_.reset();
    EXPECT_TRUE(eventually([&] {
      const ServerStatistics now = server_->statistics();
      return now.clients == 0 && now.used_bytes == 0;
    })) << server_->statistics().used_bytes
        << " bytes used";
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> witness_;
  std::string large_;
  std::string out_;
  std::uint64_t thrown_out_ = 0;
};

// --- frames

TEST_F(Hostile, FramesWithoutSenseEndTheirConnectionOnly) {
  begin();
  const std::string_view key = "key";
  auto reserved = head(Op::kGet, 3);
  reserved.flags = 2;
  // PUT ADOPT of peers before 0.1: expected version, length, lease.
  const std::array<std::uint64_t, 3> adopt{kAnyVersion, 65'536, 1};
  const wire::ReadHead returns_a_lease{
      .expected = kAnyVersion, .value_length = 8192, .address = 4096, .rkey = 1, .reserved = 1};
  const std::vector<std::vector<std::byte>> frames{
      RawClient::pack(std::uint32_t{1}),                                     // Shorter than a head.
      RawClient::pack(head(Op{0}, 3), key),                                  // No such operation.
      RawClient::pack(head(Op{13}, 3), key),                                 //
      RawClient::pack(head(Op::kGetPart, 3), key),                           // Without its offset.
      RawClient::pack(head(Op::kGetPart, 3), wire::kMostValueBytes, key),    //
      RawClient::pack(head(Op{255}, 3), key),                                //
      RawClient::pack(reserved, key),                                        //
      RawClient::pack(head(Op::kGet, 4), key),                               // A longer key than there is.
      RawClient::pack(head(Op::kGet, 0xffff), key),                          //
      RawClient::pack(head(Op::kGet, 3), key, std::string_view("value")),    //
      RawClient::pack(head(Op::kErase, 3), key, std::string_view("value")),  //
      RawClient::pack(head(Op::kCas, 3), key),                               // Without a version.
      RawClient::pack(head(Op::kCas, 3), kAnyVersion, key),                  //
      RawClient::pack(head(Op::kCell, 3), key),                              // Without its word.
      RawClient::pack(head(Op::kCell, 3), std::uint64_t{7}, key, key),       //
      RawClient::pack(head(Op::kStatistics, 3), key),                        //
      RawClient::pack(head(Op::kGoodbye), std::uint64_t{0}),                 //
      RawClient::pack(head(Op{15}, 3), key),                                 // No such operation.
      RawClient::pack(head(Op{19}, 3), key),                                 //
      RawClient::pack(head(Op::kKeys, 3), key),                              // Without its place.
      RawClient::pack(head(Op::kFlush, 0), std::uint64_t{0}),                //
      RawClient::pack(head(Op::kKeys, 0), wire::ScanPlace{}, key),           // With a value.
      RawClient::pack(head(Op::kReads)),                                     // Without its number.
      RawClient::pack(head(Op::kReads), kAnyVersion),                        //
      put_large(key, 100'000),                                               // Not as a large message.
      RawClient::pack(head(Op::kMoreLarge), key),                            //
      RawClient::pack(head(Op{10}, 3), adopt, key),                          // No operation any more.
      RawClient::pack(head(Op::kPutRead, 3), returns_a_lease, key),          //
      RawClient::pack(head(Op::kPutRead, 3), key),                           // Without its place.
      put_read(key, kEagerBytes - 1, 4096, 1),
      put_read(key, 0, 4096, 1),
      put_read(key, wire::kMostValueBytes + 1, 4096, 1),
      put_read(key, 8192, ~std::uint64_t{0} - 8191, 1),
  };
  for (std::size_t i = 0; i < frames.size(); ++i) {
    SCOPED_TRACE(i);
    RawClient raw = intruder();
    ASSERT_TRUE(raw.say(frames[i]));
    expect_thrown_out(raw);
  }
  expect_whole();
  EXPECT_EQ(server_->statistics().clients_lost, frames.size());
  expect_nothing_left();
}

// A place in the index is a number that comes from a client.
TEST_F(Hostile, PlacesOfScansThatAreLiesAreRefused) {
  begin();
  RawClient raw = intruder();
  constexpr std::uint64_t kFar = ~std::uint64_t{0};
  for (const Op op : {Op::kKeys, Op::kFlush})
    for (const wire::ScanPlace lie :
         {wire::ScanPlace{.place = 1}, wire::ScanPlace{.moves = 1}, wire::ScanPlace{.seal = 1},
          wire::ScanPlace{.place = kFar, .moves = kFar, .seal = kFar}, wire::ScanPlace{.place = kFar, .seal = 3}}) {
      ASSERT_TRUE(raw.say(RawClient::pack(head(op), lie)));
      const auto reply = raw.hear();
      ASSERT_TRUE(reply);
      EXPECT_EQ(reply->head.status, Status::kBadArgument);
    }
  // As sealed as the server would have done it, which any client could: out of range all the same.
  struct {
    std::uint64_t place, moves, worker;
  } front{kFar / 2, 0, 0};
  const std::uint64_t seal = hash_of(wire::bytes_of(front), raw.hello().hash_seed) | 1;
  ASSERT_TRUE(raw.say(RawClient::pack(head(Op::kFlush), wire::ScanPlace{.place = front.place, .seal = seal})));
  EXPECT_EQ(raw.hear()->head.status, Status::kBadArgument);
  EXPECT_TRUE(raw.is_alive());
  expect_whole();
}

TEST_F(Hostile, LargeMessagesWithoutSenseEndTheirConnectionOnly) {
  begin();
  auto reserved = put_large("key", 8192);
  reserved[sizeof(wire::RequestHead) + sizeof(wire::LargeHead) - 1] = std::byte{1};
  struct Try {
    std::vector<std::byte> head;
    std::size_t bytes;
  };
  const std::vector<Try> tries{
      {put_large("key", 0), 8192},                                                // A length that is no large one's.
      {put_large("key", kEagerBytes - 1), 8192},                                  //
      {put_large("key", 8192), 8193},                                             // More bytes than it says.
      {reserved, 8192},                                                           //
      {put_large("", 8192), 8192},                                                // No key.
      {put_large(std::string(kMaxKeyBytes + 1, 'k'), 8192), 8192},                //
      {RawClient::pack(head(Op::kMoreLarge)), 8192},                              // More of nothing.
      {RawClient::pack(head(Op::kMoreLarge, 3), std::string_view("key")), 8192},  //
      {RawClient::pack(head(Op::kPut, 3), std::string_view("key")), 8192},        // Not as an eager one.
      {RawClient::pack(head(Op::kPutLarge, 3)), 0},                               // Ends within its head.
      {RawClient::pack(std::uint32_t{7}), 0},                                     //
  };
  for (std::size_t i = 0; i < tries.size(); ++i) {
    SCOPED_TRACE(i);
    RawClient raw = intruder();
    std::ranges::fill(raw.memory(), std::byte{0});
    ASSERT_TRUE(raw.stream(tries[i].head, tries[i].bytes));
    expect_thrown_out(raw);
  }
  {
    // Bytes of a value that another message has begun, under another id.
    RawClient raw = intruder();
    ASSERT_TRUE(raw.stream(put_large("key", 100'000), 50'000));
    auto more = head(Op::kMoreLarge);
    more.id = kId + 1;
    ASSERT_TRUE(raw.stream(RawClient::pack(more), 50'000));
    expect_thrown_out(raw);
  }
  EXPECT_EQ(get("key"), "not found");
  expect_whole();
  expect_nothing_left();
}

// What is claimed takes memory at most until its client is gone, and becomes no value.
TEST_F(Hostile, LengthsThatAreLiesStoreNothing) {
  begin();
  {
    RawClient raw = intruder();
    for (const std::uint64_t length : {std::uint64_t{4'194'305}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
      // Longer than the limit: the bytes are dropped, and the answer comes when all of them are there, which is never.
      ASSERT_TRUE(raw.stream(put_large("long", length), 8192));
    }
    ASSERT_TRUE(raw.stream(put_large("half", 1 << 20), 1 << 19));
    // It is only then that a reply comes: what was not complete was replaced.
    ASSERT_TRUE(raw.stream(put_large("whole", 8192), 8192));
    const auto reply = raw.hear();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->head.status, Status::kOk);
    ASSERT_TRUE(raw.stream(put_large("half", 1 << 20), 1 << 19));
    ASSERT_TRUE(raw.stream(put_large("long", 4'194'305), 4'194'304));
    ASSERT_TRUE(raw.stream(RawClient::pack(head(Op::kMoreLarge)), 1));
    const auto refused = raw.hear();
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->head.status, Status::kTooLong);
    ASSERT_TRUE(raw.stream(put_large("half", 1 << 20), 1 << 19));
    raw.poll();
  }
  EXPECT_EQ(get("long"), "not found");
  EXPECT_EQ(get("half"), "not found");
  EXPECT_EQ(get("whole").size(), 8192u);
  ASSERT_EQ(witness_->erase(key_of("whole")).status, Status::kOk);
  expect_whole();
  expect_nothing_left();
}

// The server READs what was lent, and nothing else.
TEST_F(Hostile, MemoryThatWasNotLentEndsItsConnectionOnly) {
  begin();
  struct Lie {
    std::uint64_t length;
    std::int64_t from_start;
    std::uint32_t other_key;
  };
  constexpr auto kAll = static_cast<std::int64_t>(RawClient::kBytes);
  const Lie lies[] = {{8192, 0, 256},
                      {8192, 0, 1},
                      {8192, -1, 0},
                      {8192, -8192, 0},
                      {8192, kAll, 0},
                      {8192, kAll - 8191, 0},
                      {RawClient::kBytes, 1, 0},
                      {1 << 20, kAll - 4096, 0}};
  unsigned ended = 0;
  for (const Lie& lie : lies) {
    SCOPED_TRACE(ended);
    RawClient raw = intruder();
    const nic::Window lent = raw.lent();
    const std::uint64_t address = lent.address + static_cast<std::uint64_t>(lie.from_start);
    ASSERT_TRUE(raw.say(put_read("stolen", lie.length, address, lent.rkey + lie.other_key)));
    expect_thrown_out(raw);
    ++ended;
  }
  EXPECT_EQ(get("stolen"), "not found");
  expect_whole();
  expect_nothing_left();
}

// Others of the host would be read in its name.
TEST_F(Hostile, MemoryThatIsNotTheClientsIsNotImported) {
  VERBENA_SKIP_ON_A_DEVICE("there, the server imports nothing");
  begin();
  using Source = wire::ClientHello::Source;
  const auto lies = {
      +[](Source& source) { source.memory_id ^= 1; }, +[](Source& source) { source.memory_id += 1000; },
      +[](Source& source) { source.address -= 64; },  +[](Source& source) { source.address += RawClient::kBytes + 64; },
      +[](Source& source) { source.rkey += 256; },    +[](Source& source) { source.rkey = 0; }};
  std::uint64_t refused = 0;
  for (const auto lie : lies) {
    SCOPED_TRACE(refused);
    const RawClient raw(server_->port(), RawClient::Stops::kIfRefused, 0, lie);
    ++refused;
    EXPECT_TRUE(eventually([&] { return server_->statistics().clients_refused == refused; }))
        << server_->statistics().clients_refused;
  }
  expect_whole();
  expect_nothing_left();
}

// A client writes its memory as it likes, also while the server READs it. What is stored is whole all the same: a
// reader would find that it does not match its checksum.
TEST_F(Hostile, ValuesThatChangeMeanwhileAreStoredWhole) {
  begin();
  RawClient raw = intruder();
  std::atomic<bool> is_over{false};
  std::thread painter([&] {
    for (unsigned round = 0; !is_over.load(std::memory_order_relaxed); ++round)
      for (std::size_t at = 0; at < kLarge; at += 64)
        std::atomic_ref(raw.memory()[at]).store(static_cast<std::byte>(round), std::memory_order_relaxed);
  });
  unsigned mixed = 0;
  for (int i = 0; i < 50; ++i) {
    const std::string key = i % 2 == 0 ? "first" : "second";
    EXPECT_TRUE(raw.say(put_read(key, kLarge, raw.lent().address, raw.lent().rkey)));
    const auto reply = raw.hear();
    if (!reply) break;
    EXPECT_TRUE(reply->head.status == Status::kOk || reply->head.status == Status::kAgain) << i;
    // Twice: nothing that the client still does changes it.
    const std::string value = get(key);
    EXPECT_EQ(value.size(), kLarge);
    EXPECT_TRUE(get(key) == value);
    mixed += value.front() != value[kLarge - 64] ? 1 : 0;
  }
  is_over = true;
  painter.join();
  RecordProperty("mixed", static_cast<int>(mixed));
  EXPECT_TRUE(raw.is_alive());
  for (const char* key : {"first", "second"}) EXPECT_EQ(witness_->erase(key_of(key)).status, Status::kOk);
  expect_whole();
}

// Blocks whose READs are in flight are free once they are not.
TEST_F(Hostile, ClientsThatGoDuringTheReadsLeaveNothing) {
  begin();
  for (unsigned round = 0; round < 20; ++round) {
    RawClient raw = intruder();
    for (std::uint32_t i = 0; i <= round % 4; ++i)
      ASSERT_TRUE(
          raw.say(put_read(round % 2 == 0 ? "one" : "two", RawClient::kBytes, raw.lent().address, raw.lent().rkey)));
  }
  EXPECT_TRUE(eventually([&] { return server_->statistics().clients == 1; }));
  for (const char* key : {"one", "two"}) {
    const Status status = witness_->erase(key_of(key)).status;
    EXPECT_TRUE(status == Status::kOk || status == Status::kNotFound);
  }
  expect_whole();
  expect_nothing_left();
}

TEST_F(Hostile, NoiseHurtsNobody) {
  begin();
  std::mt19937_64 random(6);
  for (int i = 0; i < 30; ++i) {
    RawClient raw = intruder();
    // Once it was served, it counts as a client, even if it ends at once.
    ASSERT_TRUE(raw.say(RawClient::pack(head(Op::kKeys), wire::ScanPlace{.place = 1})));
    ASSERT_TRUE(raw.hear());
    for (int j = 0; j < 40 && raw.is_alive(); ++j) {
      std::vector<std::byte> noise(1 + random() % 200);
      for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
      // Half of it begins as a request does.
      if (noise.size() >= 4 && random() % 2 == 0) {
        noise[0] = static_cast<std::byte>(random() % 13);
        noise[1] = std::byte{0};
        noise[2] = static_cast<std::byte>(random() % 32);
        noise[3] = std::byte{0};
      }
      if (random() % 4 == 0) {
        (void)raw.stream(noise, random() % 9000);
      } else {
        (void)raw.say(noise);
      }
      raw.poll();
    }
    raw.poll();
  }
  EXPECT_TRUE(eventually([&] { return server_->statistics().clients_lost == 30; }));
  expect_whole();
}

// --- memory

// The index and the items are there to be READ. A WRITE of any of it is the NIC's to refuse, and ends the connection.
TEST_F(Hostile, WritesIntoIndexAndItemsAreRefused) {
  begin();
  const std::vector<std::byte> before = [&] {
    RawClient raw = intruder();
    return std::vector<std::byte>(raw.memory().begin(), raw.memory().end());
  }();
  for (const double where : {0.0, 0.01, 0.5, 0.999}) {
    RawClient raw = intruder();
    std::ranges::fill(raw.memory(), std::byte{0xEE});
    const nic::Window window = raw.window();
    EXPECT_EQ(window.access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC), 0u);
    const auto offset = static_cast<std::uint64_t>(where * static_cast<double>(window.length)) / 64 * 64;
    EXPECT_FALSE(raw.write(window, window.address + offset, 64));
    EXPECT_FALSE(raw.is_alive());
  }
  expect_whole();
}

// Keys near those that a client was told of, and those of others.
TEST_F(Hostile, GuessedKeysAreRefused) {
  begin();
  const auto other = std::make_unique<RawClient>(server_->port());
  const std::uint32_t items = other->hello().window_rkey;
  // On a device, the server takes two seconds to miss each of them.
  const std::uint32_t guesses = test::is_soft_under_test() ? 24 : 6;
  for (std::uint32_t guess = 0; guess < guesses; ++guess) {
    // The server may still have the last ones, which did not say goodbye.
    ASSERT_TRUE(eventually([&] { return server_->statistics().clients <= 2; }));
    RawClient raw = intruder();
    const std::uint32_t own = raw.stream().rkey;
    const std::uint32_t rkey = guess % 2 == 0 ? items + (guess + 1) : items + (guess + 1) * 256;
    if (rkey == own) continue;
    nic::Window window = raw.window();
    window.rkey = rkey;
    window.access = IBV_ACCESS_REMOTE_WRITE;
    EXPECT_FALSE(raw.write(window, window.address, 64)) << guess;
  }
  expect_whole();
}

/// A client in a process of its own, which has been told of another one's stream. 0: it could not write there.
int attack_stream(unsigned port, const nic::Window& stream) {
  RawClient raw(static_cast<std::uint16_t>(port));
  std::ranges::fill(raw.memory(), std::byte{0xEE});
  if (raw.write(stream, stream.address, 4096)) return 3;
  return raw.is_alive() ? 4 : 0;
}

TEST_F(Hostile, TheStreamOfAnotherClientIsOutOfReach) {
  VERBENA_SKIP_ON_A_DEVICE("there, a channel's lease is a region of the protection domain of all clients");
  begin();
  RawClient victim = intruder();
  std::ranges::fill(victim.memory(), std::byte{'v'});
  ASSERT_TRUE(victim.stream(put_large("victim", 200'000), 100'000));
  const nic::Window& stream = victim.stream();
  test::Peer attacker({"stream", std::to_string(server_->port()), std::to_string(stream.address),
                       std::to_string(stream.length), std::to_string(stream.rkey), std::to_string(stream.memory_id)});
  EXPECT_EQ(attacker.wait(), 0) << "256 times what attack_stream returned";
  ASSERT_TRUE(victim.stream(RawClient::pack(head(Op::kMoreLarge)), 100'000));
  const auto reply = victim.hear();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->head.status, Status::kOk);
  EXPECT_TRUE(get("victim") == std::string(200'000, 'v'));
  ASSERT_EQ(witness_->erase(key_of("victim")).status, Status::kOk);
  expect_whole();
}

// A client may write its channel's lease at any time, as it likes; a published value has nothing to do with it.
TEST_F(Hostile, APublishedValueIsOutOfItsClientsReach) {
  begin();
  RawClient raw = intruder();
  std::ranges::fill(raw.memory(), std::byte{'a'});
  ASSERT_TRUE(raw.stream(put_large("mine", 500'000), 500'000));
  const auto reply = raw.hear();
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->head.status, Status::kOk);
  std::ranges::fill(raw.memory(), std::byte{'b'});
  ASSERT_TRUE(raw.write(raw.stream(), raw.stream().address,
                        std::min<std::size_t>(RawClient::kBytes, static_cast<std::size_t>(raw.stream().length))));
  EXPECT_TRUE(get("mine") == std::string(500'000, 'a'));
  ASSERT_EQ(witness_->erase(key_of("mine")).status, Status::kOk);
  expect_whole();
}

// --- its own mappings, which the software NIC gives every client

/// What this process can do to the mapping at `address` of the memfd of that name, with everything that a process has:
/// "" or what it could.
std::string try_to_write(std::byte* address, std::size_t bytes, const std::string& range) {
  if (::mprotect(address, bytes, PROT_READ | PROT_WRITE) == 0) return "mprotect made it writable";
  // A descriptor of it, if this process may have one: of what it has mapped, of what it was handed.
  std::vector<std::string> names{"/proc/self/map_files/" + range};
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry, gone).string();
    if (!gone && target.find("verbena-items") != std::string::npos) names.push_back(entry.path().string());
  }
  for (const std::string& name : names) {
    for (const int flags : {O_RDWR, O_RDONLY}) {
      const int fd = ::open(name.c_str(), flags | O_CLOEXEC);
      if (fd < 0) continue;
      const char byte = 1;
      if (::pwrite(fd, &byte, 1, 0) == 1) return "wrote through a descriptor";
      if (::ftruncate(fd, 0) == 0) return "truncated it";
      if (::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0) return "punched a hole";
      if (::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED) return "mapped it writable";
      if (::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0) return "sealed it";
      ::close(fd);
    }
  }
  return "";
}

/// A client in a process of its own. 0: it found the items and could do nothing to them.
int attack_mappings(unsigned port) {
  const auto client = connect(client_options(static_cast<std::uint16_t>(port)));
  if (!client) return 3;
  unsigned found = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("verbena-items") == std::string::npos) continue;
    ++found;
    unsigned long from = 0, to = 0;
    char rights[5] = "";
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &from, &to, rights) != 3) return 4;
    if (rights[1] != '-') return 5;
    const std::string done =
        try_to_write(reinterpret_cast<std::byte*>(from), to - from, line.substr(0, line.find(' ')));
    if (!done.empty()) {
      std::fprintf(stderr, "the client %s\n", done.c_str());
      return 6;
    }
  }
  return found != 0 ? 0 : 7;
}

TEST_F(Hostile, ItsOwnMappingsAreReadOnly) {
  VERBENA_SKIP_ON_A_DEVICE("a device's client has no mapping of the server's memory");
  begin();
  test::Peer attacker({"mappings", std::to_string(server_->port())});
  EXPECT_EQ(attacker.wait(), 0) << "256 times what attack_mappings returned";
  expect_whole();
}

int peer_main(int argc, char** argv) {
  test::die_with_the_test();
  const std::string_view mode = argc > 2 ? argv[2] : "";
  const auto number = [&](int at) { return std::strtoull(argv[at], nullptr, 10); };
  if (mode == "mappings" && argc > 3) return attack_mappings(static_cast<unsigned>(number(3)));
  if (mode == "stream" && argc > 7)
    return attack_stream(static_cast<unsigned>(number(3)), {.address = number(4),
                                                            .length = number(5),
                                                            .rkey = static_cast<std::uint32_t>(number(6)),
                                                            .access = IBV_ACCESS_REMOTE_WRITE,
                                                            .memory_id = number(7)});
  return 2;
}

}  // namespace
}  // namespace verbena::kv

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1 && std::string_view(argv[1]) == "peer") return verbena::kv::peer_main(argc, argv);
  return RUN_ALL_TESTS();
}
