// What the programs print and read as text.
#include "programs/environment.hpp"
#include "programs/exit_code.hpp"
#include "programs/files.hpp"
#include "programs/json.hpp"
#include "programs/options.hpp"
#include "programs/progress.hpp"
#include "programs/shell_words.hpp"

#include "result.hpp"

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace verbena::programs {
namespace {

using Words = std::vector<std::string>;

TEST(ShellWords, SplitsAtBlanks) {
  EXPECT_EQ(split_words("").value(), Words{});
  EXPECT_EQ(split_words(" \t ").value(), Words{});
  EXPECT_EQ(split_words("put  key\tvalue ").value(), (Words{"put", "key", "value"}));
}

TEST(ShellWords, QuotesAndEscapes) {
  EXPECT_EQ(split_words(R"(put "a key" 'a "value"\n')").value(), (Words{"put", "a key", "a \"value\"\\n"}));
  EXPECT_EQ(split_words(R"("a\nb\t\x00\xfFc\"" d\ e)").value(), (Words{std::string("a\nb\t\0\xff"
                                                                                   "c\"",
                                                                                   8),
                                                                       "d e"}));
  EXPECT_EQ(split_words(R"(put k "")").value(), (Words{"put", "k", ""}));
  EXPECT_EQ(split_words(R"(a"b c"'d e'f)").value(), (Words{"ab cd ef"}));
}

TEST(ShellWords, RefusesWhatIsCutShort) {
  for (const char* line : {"\"open", "'open", "\\", "\\x", "\\x1", "\\xg0", "\"a\\"}) {
    EXPECT_STATUS(split_words(line), Status::kBadArgument) << line;
  }
}

TEST(ShellWords, EscapedTextReadsBack) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  const std::string text = escaped(bytes);
  for (const char c : text) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
  EXPECT_EQ(split_words('"' + text + '"').value(), Words{bytes});
}

TEST(Environment, ReadsFields) {
  EXPECT_EQ(proc_field("a\t: 1\nmodel name\t: Some CPU @ 2 GHz \nmodel name: other\n", "model name"),
            "Some CPU @ 2 GHz");
  EXPECT_EQ(proc_field("HugePages_Free:        3", "HugePages_Free"), "3");
  EXPECT_EQ(proc_field("no colon\n", "no colon"), "");
  EXPECT_EQ(bracketed("always [madvise] never"), "madvise");
  EXPECT_EQ(bracketed("none"), "unknown");
  EXPECT_EQ(bracketed("[open"), "unknown");
}

TEST(Environment, DescribesThisMachine) {
  const Environment environment = read_environment();
  EXPECT_GE(environment.cores_online, 1U);
  EXPECT_GE(environment.cpus_allowed, 1U);
  EXPECT_GE(environment.page_bytes, 4096U);
  EXPECT_TRUE(environment.kernel.starts_with("Linux "));
  EXPECT_FALSE(environment.cpu_model.empty());
}

TEST(Text, HumanUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes(5.0 * 1024 * 1024 * 1024 * 1024 * 1024), "5120.00 TiB");
  EXPECT_EQ(human_time(350), "350 ns");
  EXPECT_EQ(human_time(1250), "1.25 us");
  EXPECT_EQ(human_time(2.5e6), "2.50 ms");
  EXPECT_EQ(human_time(2e9), "2.00 s");
}

TEST(Json, IsAsciiWhateverBytesANameHas) {
  EXPECT_EQ(json_line("a\"b", "c\\d\n\xe4", "e", "\u00e4"), "{\"a\\\"b\":\"c\\\\d\\n\\ufffd\",\"e\":\"\\u00e4\"}\n");
}

TEST(Json, NumbersAreRoundedAndNothingIsNull) {
  EXPECT_EQ(
      json_line("a", Fixed{1.26, 1}, "b", Fixed{2.5e9, 0}, "c", Fixed{NAN, 1}, "d", std::optional<int>(), "e", 7U),
      "{\"a\":1.3,\"b\":2500000000,\"c\":null,\"d\":null,\"e\":7}\n");
}

TEST(Text, QuotedKeysHaveNoControlCharacters) {
  EXPECT_EQ(quoted_bytes("key"), "\"key\"");
  EXPECT_EQ(quoted_bytes("\x1b[2J\"\n"), R"("\x1b[2J\x22\x0a")");
  EXPECT_EQ(quoted_bytes(std::string(65, 'a')), '"' + std::string(64, 'a') + "\"...");
}

TEST(Text, Endpoints) {
  EXPECT_EQ(endpoint("127.0.0.1", 7470), "127.0.0.1:7470");
  EXPECT_EQ(endpoint("::1", 1), "[::1]:1");
}

TEST(Text, BarFitsItsWidth) {
  EXPECT_EQ(bar_text("load", 0.5, "7 files", 80).substr(0, 47), "load [####################....................]");
  EXPECT_NE(bar_text("load", 0.5, "7 files", 80).find("50 %  7 files"), std::string::npos);
  for (std::size_t width = 1; width < 100; ++width) {
    EXPECT_LE(bar_text("load", 1.5, "a note", width).size(), width);
  }
}

TEST(ExitCode, FollowsTheStatus) {
  EXPECT_EQ(exit_of(Status::kOk), Exit::kDone);
  EXPECT_EQ(exit_of(Status::kNotFound), Exit::kNo);
  EXPECT_EQ(exit_of(Status::kVersionMismatch), Exit::kNo);
  EXPECT_EQ(exit_of(Status::kBadKey), Exit::kError);
  EXPECT_EQ(exit_of(Status::kPeerLost), Exit::kError);
  EXPECT_EQ(worse(Exit::kNo, Exit::kError), Exit::kError);
}

TEST(ExitCode, ExplanationsNameTheCause) {
  EXPECT_NE(explain({.status = Status::kVersionMismatch, .version = 17}, {}).find("17"), std::string::npos);
  const Error broken(Status::kPeerLost, "poll", 0, "the server died");
  EXPECT_NE(explain({.status = Status::kPeerLost}, broken).find("the server died"), std::string::npos);
  // What damages only the operation is explained as such, whatever happened to the connection afterwards.
  EXPECT_NE(explain({.status = Status::kNotFound}, broken).find("not found"), std::string::npos);
}

TEST(BenchArguments, GoTogether) {
  EXPECT_EQ(check_bench_arguments({}), "");
  EXPECT_NE(check_bench_arguments({.key_bytes = 1, .keys = 17}), "");
  EXPECT_EQ(check_bench_arguments({.key_bytes = 1, .keys = 16}), "");
  EXPECT_NE(check_bench_arguments({.value_bytes = kMostBytes / 2}), "");
  EXPECT_NE(check_bench_arguments({.keys = kMostBytes / 2}), "");
  EXPECT_NE(check_bench_arguments({.depth = 2, .batch = 2}), "");
  EXPECT_NE(check_bench_arguments({.batch = 2, .clock_every = 2}), "");
}

TEST(BenchArguments, NameTheirRangeAndTheValue) {
  const std::pair<Words, std::string> wrong[] = {
      {{"--seconds", "0"}, R"(bench: --seconds: takes more than 0, and at most 86400, not "0")"},
      {{"--seconds", "nan"}, R"(bench: --seconds: takes more than 0, and at most 86400, not "nan")"},
      {{"--seconds", "long"}, R"(bench: --seconds: takes more than 0, and at most 86400, not "long")"},
      {{"--count", "-1"}, R"(bench: --count: takes 0 to 1099511627776, not "-1")"},
      {{"--keys", "many"}, R"(bench: --keys: takes 0 to 1099511627776, not "many")"},
      {{"--key-size", "1025"}, R"(bench: --key-size: takes 1 to 1024 bytes, such as 64 or 4K, not "1025")"},
      {{"--value-size", "2T"}, R"(bench: --value-size: takes 0 to 1099511627776 bytes, such as 64 or 4K, not "2T")"},
      {{"--read-percent", "101"}, R"(bench: --read-percent: takes 0 to 100, not "101")"},
      {{"--depth", "0"}, R"(bench: --depth: takes 1 to 1024, not "0")"},
      {{"--batch", "0x"}, R"(bench: --batch: takes 1 to 1024, not "0x")"},
      {{"--known-locations", "x"}, R"(bench: --known-locations: takes 0 to 17179869184, not "x")"},
      {{"--clock-every", "4097"}, R"(bench: --clock-every: takes 1 to 4096, not "4097")"},
      {{"--rounds", ""}, R"(bench: --rounds: takes 1 to 1000, not "")"},
  };
  for (const auto& [words, text] : wrong) {
    const auto arguments = parse_bench_words(words);
    EXPECT_EQ(arguments ? "" : arguments.error(), text);
  }
}

TEST(BenchArguments, AreReadFromWords) {
  const Words good{"--seconds", "0.5", "--value-size", "4K", "--json", "--depth", "8"};
  const auto arguments = parse_bench_words(good);
  ASSERT_TRUE(arguments) << arguments.error();
  EXPECT_EQ(arguments->seconds, 0.5);
  EXPECT_EQ(arguments->value_bytes, 4096U);
  EXPECT_EQ(arguments->depth, 8U);
  EXPECT_TRUE(arguments->json);
  for (const Words& bad :
       {Words{"--seconds"}, Words{"--no-such"}, Words{"--depth", "x"}, Words{"--depth", "0"}, Words{"7"}}) {
    EXPECT_FALSE(parse_bench_words(bad)) << bad.front();
  }
}

TEST(NearestName, IsOneSlipAwayOrAThirdOfTheWord) {
  const Words names{"get", "put", "del", "stats", "serve", "--timeout-ms"};
  const std::vector<std::pair<const char*, const char*>> slips{
      {"gte", "get"},           // Two letters changed places.
      {"puts", "put"},          // One is too many.
      {"dl", "del"},            // One is missing.
      {"sevres", "serve"},      // Two slips in six letters.
      {"statistics", nullptr},  // Five are too many.
      {"--tiemot-ms", "--timeout-ms"},
      {"frobnicate", nullptr},
      {"", nullptr},
  };
  for (const auto& [word, name] : slips) {
    const std::string* const nearest = nearest_name(word, names);
    EXPECT_EQ(nearest != nullptr ? *nearest : "", name != nullptr ? name : "") << word;
  }
}

TEST(Errors, HaveTheCommandLinesNamesAndUnits) {
  EXPECT_EQ(by_option("max_items is 5: raise memory_bytes"), "--max-items is 5: raise --memory");
  EXPECT_EQ(by_option("max_value_bytes is 4194304: lower lease_bytes"),
            "--max-value-mib is 4 (4194304 bytes): lower --lease-kib");
  EXPECT_EQ(by_option("max_value_bytes is long"), "--max-value-mib is long");
}

}  // namespace
}  // namespace verbena::programs
