// The log hook and the version.
#include "fixture.hpp"

#include <lines.hpp>

#include <verbena/log.h>
#include <verbena/version.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace verbena::test {
namespace {

TEST(Version, HeadersAndArchiveAgree) {
  EXPECT_STREQ(verbena_version(), VERBENA_VERSION);
  EXPECT_EQ(verbena_version_number(), static_cast<unsigned>(VERBENA_VERSION_NUMBER));
  EXPECT_EQ(std::string(verbena_version()), std::to_string(VERBENA_VERSION_MAJOR) + "." +
                                                std::to_string(VERBENA_VERSION_MINOR) + "." +
                                                std::to_string(VERBENA_VERSION_PATCH));
}

TEST_F(RdmaApi, EachEventIsOneLineInTheThreadThatCalled) {
  const std::thread::id here = std::this_thread::get_id();
  Lines lines(VERBENA_LOG_INFO);
  start();
  RdmaConn* const conn = connect();
  close(conn);
  ASSERT_EQ(rdmaServerStop(server), RDMA_OK);
  const std::string at_port = "port " + std::to_string(port);
  for (const char* beginning : {"listening on ", "connected to ", "the listener on "}) {
    const std::vector<Lines::Line> found = lines.with(beginning);
    ASSERT_EQ(found.size(), 1U) << beginning;
    EXPECT_EQ(found[0].level, VERBENA_LOG_INFO);
    EXPECT_EQ(found[0].thread, here) << beginning;
    EXPECT_NE(found[0].text.find(at_port), std::string::npos) << found[0].text;
    EXPECT_EQ(found[0].text.find('\n'), std::string::npos) << found[0].text;
  }
}

TEST_F(RdmaApi, ARefusedClientIsOneWarningFromAThreadOfTheLibrary) {
  options.max_connections = 1;
  start();
  RdmaConn* const first = connect();
  Lines lines(VERBENA_LOG_WARNING);
  RdmaConn* const second = make_client();
  EXPECT_EQ(rdmaConnect(second, address(), port), RDMA_ERR_LIMIT) << "the server's reason";
  const Lines::Line line = lines.next("a client ");
  EXPECT_EQ(line.level, VERBENA_LOG_WARNING);
  EXPECT_NE(line.thread, std::this_thread::get_id());
  close(first);
  ASSERT_EQ(rdmaServerStop(server), RDMA_OK);
  EXPECT_EQ(lines.with("a client ").size(), 1U);
  EXPECT_TRUE(lines.with("listening").empty() && lines.with("connected").empty() && lines.with("the listener").empty())
      << "lines that matter less were not asked for";
}

TEST_F(RdmaApi, WithoutAFunctionNobodyGetsLines) {
  std::size_t before = 0;
  Lines lines(VERBENA_LOG_INFO);
  start();
  before = lines.count();
  EXPECT_GT(before, 0U);
  verbena_set_log(nullptr, nullptr, VERBENA_LOG_INFO);
  RdmaConn* const conn = connect();
  close(conn);
  ASSERT_EQ(rdmaServerStop(server), RDMA_OK);
  EXPECT_EQ(lines.count(), before);
}

}  // namespace
}  // namespace verbena::test
