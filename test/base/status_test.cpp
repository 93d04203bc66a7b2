#include "base/error.hpp"

#include <verbena/status.hpp>

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace verbena {
namespace {

constexpr int kLast = static_cast<int>(Status::kCancelled);

TEST(Status, NamesAreThereAndDistinct) {
  std::set<std::string> names;
  for (int i = 0; i <= kLast; ++i) {
    const std::string name = to_string(static_cast<Status>(i));
    EXPECT_NE(name, "unknown status") << i;
    EXPECT_TRUE(names.insert(name).second) << name << " names two statuses";
  }
  // One of each group, and those at its ends: the names are a table in the order of the statuses.
  EXPECT_STREQ(to_string(Status::kOk), "ok");
  EXPECT_STREQ(to_string(Status::kTimedOut), "timed out");
  EXPECT_STREQ(to_string(Status::kNotFound), "not found");
  EXPECT_STREQ(to_string(Status::kIndexFull), "index full");
  EXPECT_STREQ(to_string(Status::kBadArgument), "bad argument");
  EXPECT_STREQ(to_string(Status::kBusy), "busy");
  EXPECT_STREQ(to_string(Status::kPeerLost), "peer lost");
  EXPECT_STREQ(to_string(Status::kRemoteInvalid), "remote invalid request");
  EXPECT_STREQ(to_string(Status::kClosed), "closed");
  EXPECT_STREQ(to_string(Status::kOtherHost), "other host");
  EXPECT_STREQ(to_string(Status::kNoMemory), "no memory");
  EXPECT_STREQ(to_string(Status::kSystem), "system error");
  EXPECT_STREQ(to_string(Status::kForked), "forked");
  EXPECT_STREQ(to_string(Status::kDenied), "denied");
  EXPECT_STREQ(to_string(Status::kOverQuota), "over quota");
  EXPECT_STREQ(to_string(Status::kCancelled), "cancelled");
  EXPECT_STREQ(to_string(static_cast<Status>(kLast + 1)), "unknown status");
  EXPECT_STREQ(to_string(static_cast<Status>(255)), "unknown status");
}

TEST(Status, GroupsAreInOrderOfDamage) {
  constexpr int kLastInOrder = static_cast<int>(Status::kForked);
  for (int i = 1; i <= kLastInOrder; ++i)
    EXPECT_LE(damage_of(static_cast<Status>(i - 1)), damage_of(static_cast<Status>(i)));
  for (const Status status : {Status::kOk, Status::kAgain, Status::kTimedOut})
    EXPECT_EQ(damage_of(status), Damage::kNone) << to_string(status);
  for (const Status status : {Status::kNotFound, Status::kVersionMismatch, Status::kBadKey, Status::kTooLong,
                              Status::kBufferTooSmall, Status::kStoreFull, Status::kIndexFull, Status::kWrongKind,
                              Status::kBadArgument, Status::kOutOfRange, Status::kLocalAccess, Status::kUnsupported,
                              Status::kBusy, Status::kDenied, Status::kOverQuota, Status::kCancelled})
    EXPECT_EQ(damage_of(status), Damage::kOperation) << to_string(status);
  for (const Status status :
       {Status::kPeerLost, Status::kConnectionRefused, Status::kRejected, Status::kProtocol, Status::kRemoteAccess,
        Status::kRemoteInvalid, Status::kRetryExceeded, Status::kRnrExceeded, Status::kFlushed, Status::kClosed,
        Status::kNotAllowed, Status::kOtherNamespace, Status::kOtherHost})
    EXPECT_EQ(damage_of(status), Damage::kConnection) << to_string(status);
  for (const Status status :
       {Status::kNoMemory, Status::kLimit, Status::kPermission, Status::kDevice, Status::kSystem, Status::kForked})
    EXPECT_EQ(damage_of(status), Damage::kDevice) << to_string(status);
}

TEST(Status, OfErrno) {
  EXPECT_EQ(status_of_errno(ENOMEM), Status::kNoMemory);
  EXPECT_EQ(status_of_errno(EPERM), Status::kPermission);
  EXPECT_EQ(status_of_errno(EACCES), Status::kPermission);
  EXPECT_EQ(status_of_errno(EMFILE), Status::kLimit);
  EXPECT_EQ(status_of_errno(ENFILE), Status::kLimit);
  EXPECT_EQ(status_of_errno(ENOSPC), Status::kLimit);
  EXPECT_EQ(status_of_errno(ECONNREFUSED), Status::kConnectionRefused);
  EXPECT_EQ(status_of_errno(ECONNRESET), Status::kPeerLost);
  EXPECT_EQ(status_of_errno(EPIPE), Status::kPeerLost);
  EXPECT_EQ(status_of_errno(ETIMEDOUT), Status::kTimedOut);
  EXPECT_EQ(status_of_errno(ENOSYS), Status::kUnsupported);
  EXPECT_EQ(status_of_errno(EIO), Status::kSystem);
  EXPECT_EQ(status_of_errno(0), Status::kSystem);
  EXPECT_EQ(status_of_errno(-1), Status::kSystem);
}

}  // namespace
}  // namespace verbena
