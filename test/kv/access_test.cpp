// Rights and quotas: what a client may do, what it is told, and what it can do about that.
#include "kv/access.hpp"
#include "model.hpp"
#include "raw_client.hpp"
#include "store_fixture.hpp"
#include "stranger.hpp"

#include <verbena/kv.hpp>
#include <words.hpp>

#include <array>
#include <charconv>
#include <cstdio>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::kv {
namespace {

using namespace std::chrono_literals;
using namespace testing_support;
using namespace std::string_view_literals;
using test::kStranger;
using test::Peer;

constexpr Rights kReadWrite = Rights::kRead | Rights::kWrite;

Grant grant(Rights rights, std::string_view prefix = "", uid_t uid = geteuid()) {
  return {.subject = {.uid = uid}, .rights = rights, .prefix = std::string(prefix)};
}
Grant quota(std::size_t bytes, std::size_t items, uid_t uid = geteuid()) {
  return {.subject = {.uid = uid}, .max_memory_bytes = bytes, .max_items = items};
}

// --- prefixes

TEST(KvPrefixes, CoverWhatBeginsWithThem) {
  PrefixSet set;
  EXPECT_FALSE(set.covers(key_of("a")));
  set.add("a/");
  set.add("key");
  set.add("z\0z"sv);
  for (const std::string_view key : {"a/"sv, "a/b"sv, "key"sv, "key2"sv, "z\0z"sv, "z\0zz"sv, "a/\xff"sv})
    EXPECT_TRUE(set.covers(key_of(key))) << key;
  for (const std::string_view key :
       {"a"sv, "b/"sv, "ke"sv, "kex"sv, "kf"sv, "z"sv, "z\0"sv, "z\0y"sv, "zz"sv, "\xff"sv})
    EXPECT_FALSE(set.covers(key_of(key))) << key;
  EXPECT_FALSE(set.covers_all());
  set.add("");
  EXPECT_TRUE(set.covers_all());
  EXPECT_EQ(set.size(), 1u) << "the others say nothing any more";
  EXPECT_TRUE(set.covers(key_of("\0"sv)));
}

// Beside one that compares with each.
TEST(KvPrefixes, AreFoundAsByComparingAll) {
  std::mt19937_64 random(3);
  const auto word = [&](std::size_t most) {
    constexpr std::string_view kLetters("\0a\x7f\xff", 4);
    std::string text(random() % (most + 1), ' ');
    for (char& c : text) c = kLetters[random() % kLetters.size()];
    return text;
  };
  unsigned covered = 0;
  for (int round = 0; round < 300; ++round) {
    PrefixSet set;
    std::vector<std::string> all(1 + random() % 12);
    for (std::string& prefix : all) set.add(prefix = word(4) + "a");
    for (int i = 0; i < 60; ++i) {
      const std::string key = word(7);
      const bool is_there = std::ranges::any_of(all, [&](const std::string& one) { return key.starts_with(one); });
      ASSERT_EQ(set.covers(key_of(key)), is_there);
      covered += is_there ? 1 : 0;
    }
  }
  EXPECT_GT(covered, 1000u);
}

TEST(KvAccess, SaysWhoMayWhat) {
  ServerOptions options = small_server();
  EXPECT_EQ(Access(options).find(1, false).value(), nullptr);
  EXPECT_FALSE(Access(options).exported_to());
  EXPECT_TRUE(Access(options).find(1, true).value()->write.empty());

  options.allowed_uids = {7};
  options.grants = {quota(1 << 20, 0, 7)};
  const Access quotas(options);
  EXPECT_EQ(quotas.find(geteuid(), false).value(), nullptr) << "a quota takes no rights away";
  EXPECT_TRUE(quotas.find(7, false).value()->may_use_cells());
  EXPECT_EQ(quotas.find(7, false).value()->owner, 1);
  EXPECT_FALSE(quotas.exported_to());

  options.grants = {grant(Rights::kRead, "", 8), grant(kReadWrite, "p", 9), grant(kReadWrite, "", 10), quota(5, 0, 7)};
  const Access rights(options);
  EXPECT_EQ(Access::users(options), (std::vector<uid_t>{7, 8, 9, 10}));
  EXPECT_EQ(*rights.exported_to(), (std::vector<uid_t>{8, 10, geteuid()}));
  EXPECT_EQ(*rights.cells_of(), (std::vector<uid_t>{10, geteuid()}));
  EXPECT_TRUE(rights.find(geteuid(), false).value()->may_administer) << "nobody has taken it away";
  EXPECT_FALSE(rights.find(8, false).value()->may_administer);
  for (const uid_t uid : {uid_t{7}, uid_t{11}})
    EXPECT_EQ(rights.find(uid, false).error().status(), Status::kNotAllowed);
  EXPECT_EQ(rights.find(std::nullopt, false).error().status(), Status::kNotAllowed);
}

TEST(KvAccess, WrongGrantsAreNamed) {
  const auto refuse = [](std::vector<Grant> grants, const std::vector<std::string>& says) {
    ServerOptions options = small_server();
    options.grants = std::move(grants);
    const auto server = Server::start(options);
    ASSERT_FALSE(server);
    EXPECT_EQ(server.error().status(), Status::kBadArgument);
    for (const std::string& word : says)
      EXPECT_NE(std::string_view(server.error().text()).find(word), std::string_view::npos)
          << word << " is not in: " << server.error().text();
  };
  const Grant good = grant(Rights::kRead);
  refuse({good, grant(static_cast<Rights>(8))}, {"grants[1].rights", "0 to 7", "got 8"});
  refuse({grant(Rights::kNone)}, {"grants[0].rights", "1 to 7", "got 0"});
  refuse({grant(Rights::kRead, std::string(kMaxKeyBytes + 1, 'p'))}, {"grants[0].prefix", "0 to 1024", "got 1025"});
  refuse({grant(Rights::kAdminister, "p")}, {"grants[0].prefix", "0 bytes", "got 1"});
  refuse({grant(Rights::kRead, "", ~uid_t{0})}, {"grants[0].uid", "4294967294", "got 4294967295"});
  refuse({{.subject = {.kind = static_cast<Subject::Kind>(3)}, .rights = Rights::kRead}},
         {"grants[0].subject.kind", "0 to 0", "got 3"});
  refuse(std::vector<Grant>(kMaxGrants + 1, good), {"grants", "0 to 256", "got 257"});
  refuse({quota(1 << 30, 0)}, {"grants[0].max_memory_bytes", "0 to 67108864", "got 1073741824"});
  refuse({quota(0, 20'001)}, {"grants[0].max_items", "0 to 20000", "got 20001"});
  refuse({quota(4096, 0), quota(8192, 5)}, {"grants[0] and grants[1]", "4096 and 8192 bytes"});
  refuse({quota(0, 4), quota(8192, 5)}, {"grants[0] and grants[1]", "4 and 5 items"});
  refuse({quota(4096, 0, 12'345)}, {"grants[0].uid", "allowed_uids", "got 12345"});
}

TEST(KvAccess, ManyGrantsAreTaken) {
  VERBENA_SKIP_ON_A_DEVICE("a device cannot tell users");
  ServerOptions options = small_server();
  for (std::size_t i = 0; i < kMaxGrants; ++i) options.grants.push_back(grant(kReadWrite, std::to_string(i) + "/"));
  const auto server = start(options);
  ASSERT_TRUE(server);
  const auto client = connect(client_options(*server));
  ASSERT_TRUE(client);
  EXPECT_EQ(client->put(key_of("200/x"), bytes_of("v")).status, Status::kOk);
  EXPECT_EQ(client->put(key_of("256/x"), bytes_of("v")).status, Status::kDenied);
}

// --- operations

/// A server whose own user has what a test grants it.
class KvRights : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::is_soft_under_test()) GTEST_SKIP() << "a device cannot tell users";
  }
  void begin(std::vector<Grant> grants, ServerOptions options = small_server()) {
    client_.reset();
    server_.reset();
    options.grants = std::move(grants);
    server_ = start(options);
    ASSERT_TRUE(server_);
    client_ = connect(client_options(*server_));
    ASSERT_TRUE(client_);
  }
  Status put(std::string_view key, std::string_view value = "value") {
    return client_->put(key_of(key), bytes_of(value)).status;
  }
  Status get(std::string_view key, std::size_t capacity = 1 << 20) {
    out_.resize(capacity);
    const Outcome outcome = client_->get(key_of(key), std::as_writable_bytes(std::span(out_)));
    out_.resize(outcome.status == Status::kOk ? outcome.length : 0);
    return outcome.status;
  }
  static std::string pattern(std::size_t bytes, unsigned seed) {
    std::string text(bytes, ' ');
    for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>((i + seed) * 31 + i / 4096);
    return text;
  }
  void expect_said(const std::vector<std::string>& words) {
    for (const std::string& word : words)
      EXPECT_NE(std::string_view(error_detail()).find(word), std::string_view::npos)
          << word << " is not in: " << error_detail();
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
  std::string out_;
};

TEST_F(KvRights, EachRightIsForItsOperations) {
  for (unsigned bits = 1; bits <= 7; ++bits) {
    SCOPED_TRACE(bits);
    const auto rights = static_cast<Rights>(bits);
    ServerOptions options = small_server();
    options.max_cells = 4;
    options.workers = 2;
    ASSERT_NO_FATAL_FAILURE(begin({grant(rights)}, options));
    const bool reads = has_right(rights, Rights::kRead), writes = has_right(rights, Rights::kWrite);
    const auto of = [](bool is_allowed, Status status = Status::kOk) { return is_allowed ? status : Status::kDenied; };
    const std::string large = pattern(100'000, bits);
    EXPECT_EQ(put("k"), of(writes));
    EXPECT_EQ(put("l", large), of(writes));
    const std::span<std::byte> registered = client_->allocate(large.size());
    ASSERT_EQ(registered.size(), large.size());
    std::ranges::copy(std::as_bytes(std::span(large)), registered.begin());
    EXPECT_EQ(client_->put(key_of("l"), registered).status, of(writes));
    EXPECT_EQ(get("k"), of(reads, writes ? Status::kOk : Status::kNotFound));
    EXPECT_EQ(get("l"), of(reads, writes ? Status::kOk : Status::kNotFound));
    EXPECT_TRUE(!reads || !writes || out_ == large);
    EXPECT_EQ(client_->cas(key_of("c"), 0, bytes_of("v")).status, of(writes));
    EXPECT_EQ(client_->cas(key_of("C"), 0, bytes_of(large)).status, of(writes));
    EXPECT_EQ(client_->erase(key_of("c")).status, of(writes));
    std::array<PutRequest, 2> puts{PutRequest{.key = key_of("p"), .value = bytes_of("v"), .outcome = {}},
                                   {.key = key_of("q"), .value = bytes_of(large), .outcome = {}}};
    client_->put(puts);
    for (const PutRequest& one : puts) EXPECT_EQ(one.outcome.status, of(writes));
    std::array<std::byte, 8> small{};
    std::array<GetRequest, 1> gets{GetRequest{.key = key_of("p"), .out = small, .outcome = {}}};
    client_->get(gets);
    EXPECT_EQ(gets[0].outcome.status, of(reads, writes ? Status::kOk : Status::kNotFound));
    const auto completed = [&] {
      std::array<Completion, 1> done;
      EXPECT_EQ(client_->wait(done, Deadline::after(20s)), 1u);
      return done[0].outcome.status;
    };
    ASSERT_EQ(client_->start_put(key_of("p"), bytes_of("w"), 1), Status::kOk);
    EXPECT_EQ(completed(), of(writes));
    ASSERT_EQ(client_->start_get(key_of("p"), small, 2), Status::kOk);
    EXPECT_EQ(completed(), of(reads, writes ? Status::kOk : Status::kNotFound));
    KeyCursor cursor;
    KeyPage page;
    EXPECT_EQ(client_->keys({}, cursor, page), of(reads));
    std::uint64_t erased = 0;
    EXPECT_EQ(client_->flush(key_of("absent"), erased), of(writes));
    const auto cell = client_->open_cell(key_of("cell"), 5);
    EXPECT_EQ(cell ? Status::kOk : cell.error().status(), of(reads && writes));
    const auto statistics = client_->server_statistics(Deadline::after(20s));
    EXPECT_EQ(statistics ? Status::kOk : statistics.error().status(), of(has_right(rights, Rights::kAdminister)));
    EXPECT_EQ(client_->connection_error().status(), Status::kOk) << "a refusal ends nothing";
    const ServerStatistics now = server_->statistics();
    EXPECT_EQ(now.items, writes ? 5u + (reads ? 1 : 0) : 0u);
    EXPECT_EQ(now.refusals.denied != 0, bits != 7);
    EXPECT_EQ(now.refusals.over_quota, 0u);
  }
}

TEST_F(KvRights, PrefixesLimitEachRight) {
  ASSERT_NO_FATAL_FAILURE(begin({grant(Rights::kRead, "r/"), grant(kReadWrite, "both"), grant(kReadWrite, "z\0z"sv),
                                 grant(Rights::kWrite, "w/")}));
  EXPECT_EQ(put("both"), Status::kOk);
  EXPECT_EQ(get("both"), Status::kOk);
  EXPECT_EQ(put("both2"), Status::kOk);
  EXPECT_EQ(get("both2"), Status::kOk);
  EXPECT_EQ(put("bot"), Status::kDenied) << "a prefix longer than the key";
  EXPECT_EQ(get("bot"), Status::kDenied);
  EXPECT_EQ(put("z\0z"sv), Status::kOk);
  EXPECT_EQ(get("z\0za"sv), Status::kNotFound);
  EXPECT_EQ(put("z\0y"sv), Status::kDenied);
  EXPECT_EQ(put("w/1"), Status::kOk);
  EXPECT_EQ(get("w/1"), Status::kDenied);
  EXPECT_EQ(get("r/1"), Status::kNotFound);
  EXPECT_EQ(put("r/1"), Status::kDenied);
  EXPECT_EQ(client_->erase(key_of("r/1")).status, Status::kDenied);
  EXPECT_EQ(put("r/1", pattern(100'000, 1)), Status::kDenied);
  EXPECT_EQ(client_->open_cell(key_of("both3"), 0).error().status(), Status::kDenied) << "cells need all keys";
  const auto list = [&](std::string_view prefix) {
    KeyCursor cursor;
    KeyPage page;
    return client_->keys(key_of(prefix), cursor, page);
  };
  EXPECT_EQ(list("both"), Status::kOk);
  EXPECT_EQ(list("both2"), Status::kOk);
  EXPECT_EQ(list("bot"), Status::kDenied) << "some of these keys are not granted";
  EXPECT_EQ(list(""), Status::kDenied);
  EXPECT_EQ(list("w/"), Status::kDenied);
  EXPECT_EQ(list("r/"), Status::kOk);
  std::uint64_t erased = 0;
  EXPECT_EQ(client_->flush({}, erased), Status::kDenied);
  EXPECT_EQ(client_->flush(key_of("r/"), erased), Status::kDenied);
  EXPECT_EQ(client_->flush(key_of("w/"), erased), Status::kOk);
  EXPECT_EQ(erased, 1u);
  EXPECT_EQ(client_->flush(key_of("both2"), erased), Status::kOk);
  EXPECT_EQ(get("both2"), Status::kNotFound);
  EXPECT_EQ(get("both"), Status::kOk);
  EXPECT_EQ(client_->put({}, bytes_of("v")).status, Status::kBadKey);
}

TEST_F(KvRights, RefusalsNameRightUserAndPrefix) {
  const std::string user = "uid " + std::to_string(geteuid());
  ASSERT_NO_FATAL_FAILURE(begin({grant(Rights::kRead, "a\n/"), grant(Rights::kRead, "b/")}));
  EXPECT_EQ(put("a\n/x"), Status::kDenied);
  expect_said({"put", user, "no right to write"});
  EXPECT_EQ(get("c"), Status::kDenied);
  expect_said({"get", user, "right to read only", R"("a\x0a/")", "1 more"});
  EXPECT_FALSE(client_->server_statistics(Deadline::after(20s)));
  expect_said({user, "no right to administer"});
  ASSERT_NO_FATAL_FAILURE(begin({grant(kReadWrite, std::string(200, 'p'))}));
  EXPECT_EQ(put("q"), Status::kDenied);
  expect_said({user, "right to write only", std::string(64, 'p') + "\"..."});
}

// Whoever may read all keys reads one-sided, and nobody else.
TEST_F(KvRights, WhoMayReadAllReadsOneSided) {
  ASSERT_NO_FATAL_FAILURE(begin({grant(Rights::kRead), grant(Rights::kWrite, "w")}));
  ASSERT_EQ(put("w1"), Status::kOk);
  ASSERT_EQ(get("w1"), Status::kOk);
  EXPECT_GE(client_->lookups().by_location + client_->lookups().by_index, 1u);
  EXPECT_EQ(client_->lookups().by_message, 0u);
  ASSERT_NO_FATAL_FAILURE(begin({grant(kReadWrite, "w")}));
  ASSERT_EQ(put("w1"), Status::kOk);
  ASSERT_EQ(get("w1"), Status::kOk);
  EXPECT_EQ(client_->lookups().by_message, 1u);
  EXPECT_EQ(client_->lookups().by_location + client_->lookups().by_index, 0u);
  EXPECT_NE(std::string_view(client_->description()).find("all by message"), std::string_view::npos);
}

// By message a large value comes in parts.
TEST_F(KvRights, ValuesOfAllLengthsComeByMessage) {
  ServerOptions options = small_server();
  options.workers = 2;
  ASSERT_NO_FATAL_FAILURE(begin({grant(kReadWrite, "w")}, options));
  for (const std::size_t bytes : {0UL, 1UL, 4095UL, 4096UL, wire::kPartBytes, wire::kPartBytes + 1,
                                  2 * wire::kPartBytes, 2 * wire::kPartBytes + 1, 65'536UL, 1'000'000UL}) {
    SCOPED_TRACE(bytes);
    const std::string value = pattern(bytes, 3);
    ASSERT_EQ(put("w", value), Status::kOk);
    ASSERT_EQ(get("w"), Status::kOk);
    ASSERT_TRUE(out_ == value);
    if (bytes == 0) continue;
    std::string small(bytes - 1, ' ');
    const Outcome cut = client_->get(key_of("w"), std::as_writable_bytes(std::span(small)));
    EXPECT_EQ(cut.status, Status::kBufferTooSmall);
    EXPECT_EQ(cut.length, bytes);
  }
  run_against_model(*client_, "w", 5, 400);
}

// A value that is replaced between its parts is read anew: never a mixture.
TEST_F(KvRights, PartsAreOfOneValue) {
  ASSERT_NO_FATAL_FAILURE(begin({grant(kReadWrite, "w")}));
  const auto writer = connect(client_options(*server_));
  ASSERT_TRUE(writer);
  constexpr std::size_t kBytes = 300'000;
  const auto filled = [](char c) { return std::string(kBytes + static_cast<std::size_t>(c - 'a') * 5000, c); };
  ASSERT_EQ(put("w", filled('a')), Status::kOk);
  std::string out(2 * kBytes, ' ');
  std::array<Completion, 1> done;
  for (unsigned i = 1; i <= 60; ++i) {
    ASSERT_EQ(client_->start_get(key_of("w"), std::as_writable_bytes(std::span(out)), i), Status::kOk);
    for (unsigned polls = 0; polls < i % 20; ++polls) ASSERT_EQ(client_->poll({}), 0u);
    ASSERT_EQ(writer->put(key_of("w"), bytes_of(filled(static_cast<char>('a' + i % 20)))).status, Status::kOk);
    ASSERT_EQ(client_->wait(done, Deadline::after(20s)), 1u);
    ASSERT_EQ(done[0].outcome.status, Status::kOk);
    const std::string_view got(out.data(), done[0].outcome.length);
    ASSERT_EQ(got.find_first_not_of(got[0]), std::string_view::npos);
    ASSERT_EQ(got.size(), filled(got[0]).size());
  }
}

/// A line that a reader takes for the item of the key, whatever it is really a part of.
std::array<std::byte, kLineBytes> forged_item(std::string_view key, std::string_view value) {
  constexpr std::uint64_t kVersion = 77;
  const ItemShape shape{.value_length = value.size(), .key_length = key.size()};
  ItemHeader header{.state = state_word(ItemState::kLive, kVersion), .shape = shape.pack()};
  std::array<std::byte, kLineBytes> line{};
  std::memcpy(line.data(), &header, sizeof header);
  std::memcpy(line.data() + sizeof header, key.data(), key.size());
  std::memcpy(line.data() + shape.tail_offset(), value.data(), value.size());
  header.checksum = checksum_of(line.data(), shape.bytes(), kVersion);
  std::memcpy(line.data(), &header, sizeof header);
  return line;
}

// A value whose bytes look like items, over a place that a reader remembers.
TEST_F(KvRights, AForgedItemIsNotTakenWhereWritersAreLimited) {
  for (const bool is_limited : {false, true}) {
    SCOPED_TRACE(is_limited);
    ASSERT_NO_FATAL_FAILURE(begin({grant(Rights::kRead), grant(Rights::kWrite, is_limited ? "w" : "")}));
    const auto writer = connect(client_options(*server_));
    ASSERT_TRUE(writer);
    ASSERT_EQ(put("w/victim", "of the owner"), Status::kOk);
    ASSERT_EQ(get("w/victim"), Status::kOk);
    ASSERT_EQ(out_, "of the owner");
    ASSERT_EQ(writer->erase(key_of("w/victim")).status, Status::kOk);
    const auto line = forged_item("w/victim", "forged");
    std::string spray;
    for (int i = 0; i < 16'384; ++i) spray.append(reinterpret_cast<const char*>(line.data()), line.size());
    // Until all of the memory is full of it. Its keys are too long for items of the victim's size.
    unsigned sprayed = 0;
    for (const std::size_t bytes : {spray.size(), std::size_t{64} << 10, std::size_t{4096}}) {
      Status status = Status::kOk;
      for (; status == Status::kOk; ++sprayed) {
        const std::string key = "w/" + std::string(60, 's') + std::to_string(sprayed);
        status = writer->put(key_of(key), bytes_of(spray).first(bytes)).status;
      }
      ASSERT_EQ(status, Status::kStoreFull);
    }
    const Status status = get("w/victim");
    if (is_limited) {
      EXPECT_EQ(status, Status::kNotFound);
    } else {
      // Who may write all keys gains nothing by it: docs/kv.md, "Items". Here it shows that the forgery is one.
      EXPECT_EQ(status, Status::kOk);
      EXPECT_EQ(out_, "forged");
    }
  }
}

// --- read-only clients

TEST_F(KvRights, AReadOnlyClientChangesNothing) {
  ServerOptions options = small_server();
  options.max_cells = 1;
  ASSERT_NO_FATAL_FAILURE(begin({}, options));
  ASSERT_EQ(put("k"), Status::kOk);
  ClientOptions promise = client_options(*server_);
  promise.read_only = true;
  const auto reader = connect(promise);
  ASSERT_TRUE(reader);
  EXPECT_EQ(reader->put(key_of("k"), bytes_of("other")).status, Status::kDenied);
  expect_said({"put", "read_only"});
  EXPECT_EQ(reader->cas(key_of("k"), 1, bytes_of("other")).status, Status::kDenied);
  EXPECT_EQ(reader->erase(key_of("k")).status, Status::kDenied);
  EXPECT_EQ(reader->open_cell(key_of("c"), 0).error().status(), Status::kDenied);
  EXPECT_EQ(reader->start_put(key_of("k"), bytes_of("other"), 1), Status::kDenied);
  std::array<std::byte, 8> out;
  EXPECT_EQ(reader->get(key_of("k"), out).length, 5u);
  EXPECT_TRUE(reader->server_statistics(Deadline::after(20s)));
  EXPECT_EQ(server_->statistics().refusals.denied, 0u) << "this end has refused already";
}

// The server holds the client to its promise, whatever that sends.
TEST_F(KvRights, TheServerRefusesWhatAReadOnlyClientSends) {
  ServerOptions options = small_server();
  options.max_cells = 1;
  ASSERT_NO_FATAL_FAILURE(begin({}, options));
  RawClient raw(server_->port(), RawClient::Stops::kNever, wire::kReadOnly);
  EXPECT_EQ(raw.hello().flags, 0u) << "it may READ";
  const auto denied = [&](bool is_sent) {
    ASSERT_TRUE(is_sent);
    const auto reply = raw.hear();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->head.status, Status::kDenied);
    EXPECT_EQ(reply->refusal.is_promised, 1u);
    EXPECT_EQ(reply->refusal.right, Rights::kWrite);
  };
  const auto pack = [](const auto&... frames) { return RawClient::pack(frames...); };
  denied(raw.say(pack(head(wire::Op::kPut, 1), "k"sv, "v"sv)));
  denied(raw.say(pack(head(wire::Op::kCas, 1), std::uint64_t{0}, "k"sv, "v"sv)));
  denied(raw.say(pack(head(wire::Op::kErase, 1), "k"sv)));
  denied(raw.say(pack(head(wire::Op::kFlush), wire::ScanPlace{})));
  denied(raw.say(pack(head(wire::Op::kCell, 1), std::uint64_t{0}, "k"sv)));
  denied(raw.say(pack(
      head(wire::Op::kPutRead, 1),
      wire::ReadHead{
          .expected = wire::kAnyVersion, .value_length = 8192, .address = raw.lent().address, .rkey = raw.lent().rkey},
      "k"sv)));
  denied(raw.stream(pack(head(wire::Op::kPutLarge, 1),
                         wire::LargeHead{.expected = wire::kAnyVersion, .value_length = 100'000}, "k"sv),
                    100'000));
  EXPECT_EQ(server_->statistics().items, 0u);
  EXPECT_EQ(server_->statistics().refusals.denied, 7u);
}

// --- quotas

class KvOwners : public StoreFixture {
 protected:
  void begin(Account::Amount most, std::size_t bytes = std::size_t{8} << 20) {
    own_[0].limit(most);
    accounts_ = own_;
    make(bytes, 1000);
  }
  Store::Change put_as(Owner owner, std::string_view key, std::string_view value, std::uint64_t expected = kAny) {
    return store_->put(as_key(key), std::as_bytes(std::span(value)), expected, owner);
  }
  void expect_used(std::uint64_t bytes, std::uint64_t items) {
    EXPECT_EQ(own_[0].used().bytes, bytes);
    EXPECT_EQ(own_[0].used().items, items);
  }
  void TearDown() override { store_.reset(); }

  std::array<Account, 2> own_;
};

constexpr std::uint64_t kNoLimit = Account::kUnlimited;

TEST_F(KvOwners, ItemsCountForWhoWroteThemLast) {
  ASSERT_NO_FATAL_FAILURE(begin({.bytes = kNoLimit, .items = 2}));
  ASSERT_EQ(put_as(1, "a", "v").status, Status::kOk);
  ASSERT_EQ(put_as(1, "b", "v").status, Status::kOk);
  expect_used(128, 2);
  const Store::Change third = put_as(1, "c", "v");
  EXPECT_EQ(third.status, Status::kOverQuota);
  EXPECT_EQ(third.quota, Quota::kItems);
  EXPECT_EQ(get("c"), "not found");
  expect_used(128, 2);
  EXPECT_EQ(put_as(1, "a", "w").status, Status::kOk) << "its own place is free again by this";
  expect_used(128, 2);
  ASSERT_EQ(put_as(2, "a", "by the other").status, Status::kOk);
  expect_used(64, 1);
  EXPECT_EQ(own_[1].used().items, 1u);
  ASSERT_EQ(put_as(kNoOwner, "b", "by anybody").status, Status::kOk);
  expect_used(0, 0);
  ASSERT_EQ(put_as(1, "c", "v").status, Status::kOk);
  ASSERT_EQ(store_->erase(as_key("c")).status, Status::kOk);
  expect_used(0, 0);
  EXPECT_EQ(put_as(1, "a", "v", 12'345).status, Status::kVersionMismatch);
  expect_used(0, 0);
}

TEST_F(KvOwners, MemoryIsThatOfBlocks) {
  ASSERT_NO_FATAL_FAILURE(begin({.bytes = 100'000, .items = kNoLimit}));
  const std::string large(60'000, 'l');  // A block of 15 pages and a header of 64 B.
  ASSERT_EQ(put_as(1, "l", large).status, Status::kOk);
  expect_used(61'440 + 64, 1);
  const Store::Change more = put_as(1, "m", large);
  EXPECT_EQ(more.status, Status::kOverQuota);
  EXPECT_EQ(more.quota, Quota::kMemory);
  EXPECT_EQ(put_as(1, "l", large).status, Status::kOk);
  expect_used(61'440 + 64, 1);
  // A value that is on its way counts already.
  Store::Pending pending;
  ASSERT_EQ(store_->reserve(as_key("p"), 20'000, kAny, pending, 1).status, Status::kOk);
  expect_used(61'440 + 64 + 20'480 + 64, 2);
  EXPECT_EQ(put_as(1, "q", std::string(20'000, 'q')).status, Status::kOverQuota);
  store_->abandon(pending);
  expect_used(61'440 + 64, 1);
  EXPECT_EQ(put_as(1, "q", std::string(20'000, 'q')).status, Status::kOk);
  const std::uint64_t used = store_->statistics().used_bytes;
  EXPECT_EQ(own_[0].used().bytes, used);
}

// Whoever may not have so much is told that, and not that the store is full.
TEST_F(KvOwners, AreToldOfTheirQuotaBeforeAFullStore) {
  ASSERT_NO_FATAL_FAILURE(begin({.bytes = 10'000, .items = 10}));
  const std::string value(20'000, 'v');
  Status status = Status::kOk;
  for (int i = 0; i < 100'000 && status == Status::kOk; ++i)
    status = put_as(kNoOwner, "k" + std::to_string(i), value).status;
  ASSERT_EQ(status, Status::kStoreFull);
  const Store::Change refused = put_as(1, "mine", value);
  EXPECT_EQ(refused.status, Status::kOverQuota);
  EXPECT_EQ(refused.quota, Quota::kMemory);
}

// Random owners, against a map.
TEST_F(KvOwners, AccountsAgreeWithTheItems) {
  own_[1].limit({.bytes = 400'000, .items = 30});
  ASSERT_NO_FATAL_FAILURE(begin({.bytes = 200'000, .items = 50}));
  std::mt19937_64 random(4);
  std::array<unsigned, 101> owner_of{};
  unsigned refused = 0;
  for (int step = 0; step < 20'000; ++step) {
    const std::size_t key = random() % owner_of.size();
    const std::string name = "k" + std::to_string(key);
    const auto owner = static_cast<Owner>(random() % 3);
    if (random() % 4 == 0) {
      (void)store_->erase(as_key(name));
      owner_of[key] = 0;
    } else if (const Status status = put_as(owner, name, std::string(random() % 9000, 'v')).status;
               status == Status::kOk) {
      owner_of[key] = owner;
    } else {
      ASSERT_EQ(status, Status::kOverQuota);
      ++refused;
    }
    advance(1000);
    for (const Owner each : {Owner{1}, Owner{2}}) {
      ASSERT_EQ(own_[each - 1u].used().items, static_cast<std::uint64_t>(std::ranges::count(owner_of, each)));
      ASSERT_LE(own_[each - 1u].used().bytes, own_[each - 1u].most().bytes);
    }
  }
  EXPECT_GT(refused, 100u);
  for (std::size_t key = 0; key < owner_of.size(); ++key) (void)store_->erase(as_key("k" + std::to_string(key)));
  expect_used(0, 0);
  EXPECT_EQ(own_[1].used().bytes, 0u);
}

TEST_F(KvRights, QuotasHoldOverAllWorkers) {
  ServerOptions options = small_server();
  options.workers = 4;
  ASSERT_NO_FATAL_FAILURE(begin({quota(0, 100)}, options));
  unsigned stored = 0;
  for (unsigned i = 0; i < 300; ++i) {
    const Status status = put(std::to_string(i));
    ASSERT_EQ(status, stored < 100 ? Status::kOk : Status::kOverQuota) << i;
    stored += status == Status::kOk ? 1 : 0;
  }
  expect_said({"put", "uid " + std::to_string(geteuid()), "100 items", "quota of 100", "max_items"});
  EXPECT_EQ(server_->statistics().items, 100u);
  EXPECT_EQ(server_->statistics().refusals.over_quota, 200u);
  ASSERT_EQ(client_->erase(key_of("7")).status, Status::kOk);
  EXPECT_EQ(put("once more"), Status::kOk);
  EXPECT_EQ(put("twice more"), Status::kOverQuota);
  EXPECT_EQ(client_->open_cell(key_of("c"), 0).error().status(), Status::kUnsupported);
  EXPECT_GE(client_->lookups().by_message, 0u);
  ASSERT_EQ(get("8"), Status::kOk);
  EXPECT_EQ(client_->lookups().by_message, 0u) << "a quota takes no memory away";
}

TEST_F(KvRights, QuotasOfMemoryAreForAllWaysOfWriting) {
  ServerOptions options = small_server();
  options.max_cells = 100;
  constexpr std::size_t kQuota = std::size_t{1} << 20;
  ASSERT_NO_FATAL_FAILURE(begin({quota(kQuota, 0)}, options));
  const std::string large = pattern(524'288, 1);
  ASSERT_EQ(put("a", large), Status::kOk);
  EXPECT_EQ(put("b", large), Status::kOverQuota);
  expect_said({"524352 bytes", "quota of 1048576", "max_memory_bytes"});
  EXPECT_EQ(client_->cas(key_of("b"), 0, bytes_of(large)).status, Status::kOverQuota);
  ASSERT_EQ(put("a", large), Status::kOk) << "it may be replaced";
  const std::span<std::byte> registered = client_->allocate(large.size());
  ASSERT_EQ(registered.size(), large.size());
  EXPECT_EQ(client_->put(key_of("b"), registered).status, Status::kOverQuota) << "the server READs nothing then";
  const std::string middle = pattern(130'000, 1);
  for (int i = 0; i < 8; ++i) ASSERT_EQ(put("m", middle), Status::kOk) << i;
  EXPECT_EQ(client_->put(key_of("m"), registered.first(130'000)).status, Status::kOk);
  const auto cell = client_->open_cell(key_of("cell"), 1);
  EXPECT_TRUE(cell);
  for (const char* key : {"a", "m"}) ASSERT_EQ(client_->erase(key_of(key)).status, Status::kOk);
  // All of it is there again, but for the cell.
  EXPECT_EQ(put("b", large), Status::kOk);
  EXPECT_EQ(put("c", pattern(260'000, 1)), Status::kOk);
}

// --- other users

/// What a peer of another user does one after the other, and what its calls came to: WORD:KEY.
int be_stranger(std::uint16_t port, std::span<char*> calls) {
  if (!test::become_stranger()) return 2;
  const auto say = [](auto number) {
    std::printf("%d\n", static_cast<int>(number));
    std::fflush(stdout);
  };
  auto client = Client::connect(client_options(port));
  say(client ? Status::kOk : client.error().status());
  if (!client) return 0;
  std::string out(1 << 20, ' ');
  for (const std::string_view call : calls) {
    const std::string_view word = call.substr(0, call.find(':'));
    const Key key = key_of(call.substr(word.size() + 1));
    if (word == "put") say((*client)->put(key, bytes_of("of the stranger")).status);
    if (word == "large") say((*client)->put(key, bytes_of(std::string(200'000, 's'))).status);
    if (word == "get") say((*client)->get(key, std::as_writable_bytes(std::span(out))).status);
    if (word == "cell") {
      const auto cell = (*client)->open_cell(key, 0);
      say(cell ? Status::kOk : cell.error().status());
    }
    if (word == "del") say((*client)->erase(key).status);
    if (word == "stats") {
      const auto statistics = (*client)->server_statistics(Deadline::after(20s));
      say(statistics ? Status::kOk : statistics.error().status());
    }
    if (word == "read") say((*client)->lookups().by_message == 0 ? 1 : 0);
  }
  return 0;
}

/// A hostile one, who has been told of the windows by somebody else.
int be_intruder(std::uint16_t port, const nic::Window& items) {
  if (!test::become_stranger()) return 2;
  const auto say = [](auto number) {
    std::printf("%d\n", static_cast<int>(number));
    std::fflush(stdout);
  };
  RawClient raw(port);
  say(raw.hello().flags);
  say(raw.window() == nic::Window{} && raw.hello().index_buckets == 0);
  // The NIC gives no memory, whatever is asked for.
  const auto imported = raw.import(items);
  say(imported ? Status::kOk : imported.error().status());
  unsigned refused = 0;
  for (std::uint64_t memory = 1; memory <= 64; ++memory) {
    nic::Window guess = items;
    guess.memory_id = memory;
    for (const std::uint32_t rkey : {items.rkey, items.rkey + 256, items.rkey - 256}) {
      guess.rkey = rkey;
      refused += raw.import(guess) ? 0 : 1;
    }
  }
  say(refused);
  // Large values come in parts, and without a place.
  const std::string_view secret = "secret";
  if (!raw.say(RawClient::pack(head(wire::Op::kGetPart, secret.size()), std::uint64_t{0}, secret))) return 4;
  const auto part = raw.hear();
  say(part ? part->head.status : Status::kPeerLost);
  // Straight to the queue pair: it costs the connection.
  say(raw.read(items, 64) ? 1 : 0);
  RawClient other(port);
  say(other.change(items, items.address) == Status::kOk ? 1 : 0);
  RawClient third(port);
  say(third.write(items, items.address, 64) ? 1 : 0);
  return 0;
}

class KvStrangers : public KvRights {
 protected:
  void SetUp() override {
    KvRights::SetUp();
    if (!IsSkipped() && geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  }
  /// A peer's calls, and what they came to; connecting first.
  void expect_calls(std::vector<std::pair<std::string, Status>> calls, Status connected = Status::kOk) {
    std::vector<std::string> arguments{"stranger", std::to_string(server_->port())};
    for (const auto& call : calls) arguments.push_back(call.first);
    Peer peer(arguments);
    ASSERT_EQ(peer.read_number(), static_cast<int>(connected));
    for (const auto& [call, status] : calls) EXPECT_EQ(peer.read_number(), static_cast<int>(status)) << call;
    EXPECT_EQ(peer.wait(), 0);
  }
};

TEST_F(KvStrangers, HaveWhatIsGrantedToThem) {
  ServerOptions options = small_server();
  options.max_cells = 1;
  ASSERT_NO_FATAL_FAILURE(
      begin({grant(Rights::kRead, "shown/", kStranger), grant(Rights::kWrite, "in/", kStranger)}, options));
  ASSERT_EQ(put("shown/a"), Status::kOk) << "nobody has taken away the rights of the server's own user";
  ASSERT_EQ(put("shown/large", pattern(300'000, 1)), Status::kOk);
  ASSERT_EQ(put("secret"), Status::kOk);
  expect_calls({{"get:shown/a", Status::kOk},
                {"get:shown/large", Status::kOk},
                {"get:secret", Status::kDenied},
                {"get:in/x", Status::kDenied},
                {"put:in/x", Status::kOk},
                {"large:in/y", Status::kOk},
                {"put:shown/a", Status::kDenied},
                {"large:shown/a", Status::kDenied},
                {"del:shown/a", Status::kDenied},
                {"del:in/x", Status::kOk},
                {"cell:in/c", Status::kDenied},
                {"stats:", Status::kDenied}});
  EXPECT_EQ(get("shown/a"), Status::kOk);
  EXPECT_EQ(out_, "value");
  EXPECT_EQ(get("in/y"), Status::kOk);
  EXPECT_TRUE(out_ == std::string(200'000, 's'));
  EXPECT_EQ(server_->statistics().refusals.denied, 7u);
}

TEST_F(KvStrangers, WithoutARightCannotConnect) {
  ServerOptions options = small_server();
  options.allowed_uids = {kStranger};
  ASSERT_NO_FATAL_FAILURE(begin({grant(Rights::kRead, "", 12'345)}, options));
  ASSERT_NO_FATAL_FAILURE(expect_calls({}, Status::kNotAllowed));
  ASSERT_NO_FATAL_FAILURE(begin({quota(4096, 0, kStranger)}, options));
  expect_calls({{"put:a", Status::kOk}, {"large:b", Status::kOverQuota}, {"stats:", Status::kOk}});
}

TEST_F(KvStrangers, WhoReadsAllReadsOneSidedAndWritesNothing) {
  ServerOptions options = small_server();
  options.max_cells = 1;
  ASSERT_NO_FATAL_FAILURE(begin({grant(Rights::kRead, "", kStranger)}, options));
  ASSERT_EQ(put("a"), Status::kOk);
  expect_calls({{"get:a", Status::kOk},
                {"read:", static_cast<Status>(1)},
                {"put:a", Status::kDenied},
                {"cell:c", Status::kDenied}});
}

// Nothing of the memory is to be had without the right to read all of it, by any key or number.
TEST_F(KvStrangers, AreGivenNoMemory) {
  ServerOptions options = small_server();
  options.max_clients = 16;
  options.max_cells = 1;
  ASSERT_NO_FATAL_FAILURE(
      begin({grant(Rights::kRead, "shown", kStranger), grant(Rights::kWrite, "mine/", kStranger)}, options));
  ASSERT_EQ(put("secret", pattern(100'000, 1)), Status::kOk);
  const RawClient own(server_->port());
  const nic::Window items = own.window();
  ASSERT_EQ(own.hello().flags, wire::kGuarded);
  Peer peer({"intruder", std::to_string(server_->port()), std::to_string(items.address), std::to_string(items.length),
             std::to_string(items.rkey), std::to_string(items.access), std::to_string(items.memory_id)});
  EXPECT_EQ(peer.read_number(), 1) << "it goes by message";
  EXPECT_EQ(peer.read_number(), 1) << "it is told of no window";
  EXPECT_EQ(peer.read_number(), static_cast<int>(Status::kNotAllowed)) << "it has imported the items";
  EXPECT_EQ(peer.read_number(), 3 * 64) << "it has imported something";
  EXPECT_EQ(peer.read_number(), static_cast<int>(Status::kDenied));
  EXPECT_EQ(peer.read_number(), 0) << "it has READ";
  EXPECT_EQ(peer.read_number(), 0) << "it has changed a word";
  EXPECT_EQ(peer.read_number(), 0) << "it has written";
  EXPECT_EQ(peer.wait(), 0);
  EXPECT_EQ(get("secret"), Status::kOk);
  EXPECT_TRUE(out_ == pattern(100'000, 1));
}

int peer_main(int argc, char** argv) {
  test::die_with_the_test();
  const auto number = [&](int at) { return at < argc ? std::strtoull(argv[at], nullptr, 10) : 0; };
  const auto port = static_cast<std::uint16_t>(number(3));
  if (argv[2] == "stranger"sv) return be_stranger(port, std::span(argv + 4, static_cast<std::size_t>(argc - 4)));
  const nic::Window items{.address = number(4),
                          .length = number(5),
                          .rkey = static_cast<std::uint32_t>(number(6)),
                          .access = static_cast<std::uint32_t>(number(7)),
                          .memory_id = number(8)};
  return be_intruder(port, items);
}

}  // namespace
}  // namespace verbena::kv

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 2 && std::string_view(argv[1]) == "peer") return verbena::kv::peer_main(argc, argv);
  return RUN_ALL_TESTS();
}
