// The GID choice on tables as hosts have them, and on tables as no host should.
#include "nic/verbs/gid.hpp"

#include "result.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace verbena::nic::verbs {
namespace {

using Table = std::vector<GidEntry>;
constexpr auto kIb = LinkLayer::kInfiniBand;
constexpr auto kEth = LinkLayer::kEthernet;
constexpr auto kV1 = GidType::kRoceV1;
constexpr auto kV2 = GidType::kRoceV2;

ibv_gid gid(std::string_view text) {
  const std::string address(text);
  ibv_gid parsed{};
  if (inet_pton(AF_INET6, address.c_str(), parsed.raw) == 1) return parsed;
  parsed = {};
  parsed.raw[10] = parsed.raw[11] = 0xff;
  EXPECT_EQ(inet_pton(AF_INET, address.c_str(), parsed.raw + 12), 1) << text;
  return parsed;
}

NetdevName name(std::string_view text) {
  NetdevName out{};
  std::ranges::copy(text.substr(0, out.size()), out.begin());
  return out;
}

GidEntry entry(std::uint32_t index, std::string_view address, GidType type = kV2, std::string_view netdev = "eth0") {
  return {.index = index, .gid = gid(address), .type = type, .netdev = name(netdev)};
}

GidWanted want_address(std::string_view text) { return {.index = std::nullopt, .address = gid(text)}; }
GidWanted want_index(std::uint32_t index) { return {.index = index, .address = std::nullopt}; }

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// The index chosen, or -1 after a failure.
int chosen(LinkLayer layer, const Table& table, const GidWanted& wanted = {}) {
  const auto choice = choose_gid(layer, table, wanted);
  return choice ? static_cast<int>(choice->index) : -1;
}

std::string reason(LinkLayer layer, const Table& table, const GidWanted& wanted = {}) {
  const auto choice = choose_gid(layer, table, wanted);
  EXPECT_OK(choice);
  return choice ? choice->reason.data() : "";
}

std::string failure(LinkLayer layer, const Table& table, const GidWanted& wanted, Status status) {
  const auto choice = choose_gid(layer, table, wanted);
  EXPECT_STATUS(choice, status);
  return choice ? "" : choice.error().text();
}

/// The verdict on the first entry with this index.
GidVerdict verdict(LinkLayer layer, const Table& table, std::uint32_t index, const GidWanted& wanted = {}) {
  for (const GidVerdict& each : judge_gids(layer, table, wanted)) {
    if (each.entry.index == index) return each;
  }
  ADD_FAILURE() << "no verdict on GID " << index;
  return {};
}

// One port of a ConnectX as show_gids prints it: both versions of the MAC's link-local address and of each IP address.
Table connectx(std::string_view netdev = "ens1f0np0", std::string_view ipv4 = "192.168.10.5",
               std::string_view link_local = "fe80::ac0:ebff:feda:1cfb") {
  return {entry(0, link_local, kV1, netdev), entry(1, link_local, kV2, netdev), entry(2, ipv4, kV1, netdev),
          entry(3, ipv4, kV2, netdev)};
}

// The same port with two VLANs on it: each brings a link-local address of its own, the same as the port's.
Table connectx_with_vlans() {
  Table table = connectx("eth0", "10.0.0.5");
  for (const GidEntry& each :
       {entry(4, "fe80::ac0:ebff:feda:1cfb", kV1, "eth0.100"), entry(5, "fe80::ac0:ebff:feda:1cfb", kV2, "eth0.100"),
        entry(6, "10.0.100.5", kV1, "eth0.100"), entry(7, "10.0.100.5", kV2, "eth0.100"),
        entry(8, "fe80::ac0:ebff:feda:1cfb", kV1, "eth0.200"), entry(9, "fe80::ac0:ebff:feda:1cfb", kV2, "eth0.200"),
        entry(10, "2001:db8:200::5", kV1, "eth0.200"), entry(11, "2001:db8:200::5", kV2, "eth0.200")}) {
    table.push_back(each);
  }
  return table;
}

// A pod with a macvlan: the host's GIDs are seen, but not the interfaces that they belong to.
Table pod() {
  Table table = connectx("");
  for (const GidEntry& each :
       {entry(4, "fe80::a4ed:ccff:fe8b:1994", kV1, "net1"), entry(5, "fe80::a4ed:ccff:fe8b:1994", kV2, "net1"),
        entry(6, "10.152.0.12", kV1, "net1"), entry(7, "10.152.0.12", kV2, "net1")}) {
    table.push_back(each);
  }
  return table;
}

// --- texts and kinds ---

TEST(GidText, KindsAreToldByPrefix) {
  const std::pair<const char*, GidKind> kinds[] = {
      {"::", GidKind::kUnset},
      {"0.0.0.0", GidKind::kUnset},
      {"fe80::", GidKind::kUnset},
      {"fe80::1", GidKind::kLinkLocal},
      {"fe80:0:0:7::1", GidKind::kLinkLocal},
      {"febf:ffff::1", GidKind::kLinkLocal},
      {"fe7f::1", GidKind::kGlobal},
      {"fec0::1", GidKind::kGlobal},
      {"169.254.0.1", GidKind::kLinkLocal},
      {"169.253.255.255", GidKind::kIpv4},
      {"169.255.0.0", GidKind::kIpv4},
      {"127.255.255.254", GidKind::kLoopback},
      {"128.0.0.1", GidKind::kIpv4},
      {"::1", GidKind::kLoopback},
      {"::2", GidKind::kGlobal},
      {"10.0.0.1", GidKind::kIpv4},
      {"::ffff:10.0.0.1", GidKind::kIpv4},
      {"::10.0.0.1", GidKind::kGlobal},
      {"fd93:1::1", GidKind::kGlobal},
      {"2001:db8::1", GidKind::kGlobal},
  };
  for (const auto& [text, kind] : kinds) EXPECT_EQ(kind_of(gid(text)), kind) << text;
  EXPECT_TRUE(is_ipv4_mapped(gid("169.254.0.1")));
  EXPECT_FALSE(is_ipv4_mapped(gid("::10.0.0.1")));
  EXPECT_FALSE(is_ipv4_mapped(gid("::1:ffff:10.0.0.1")));
}

TEST(GidText, PrintsAsPeopleWriteIt) {
  EXPECT_STREQ(gid_text(gid("::ffff:192.168.10.5")).data(), "192.168.10.5");
  EXPECT_STREQ(gid_text(gid("0000:0000:0000:0000:0000:ffff:c800:d106")).data(), "200.0.209.6");  // As in sysfs.
  EXPECT_STREQ(gid_text(gid("fe80:0000:0000:0000:0ac0:ebff:feda:1cfb")).data(), "fe80::ac0:ebff:feda:1cfb");
  EXPECT_STREQ(gid_text(ibv_gid{}).data(), "::");
}

TEST(GidText, EveryGidIsReadBack) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20'000; ++i) {
    ibv_gid some{};
    // Runs of zeros, and mapped addresses, are what the printer abbreviates.
    const std::uint64_t zeros = random();
    for (unsigned b = 0; b < 16; ++b) {
      some.raw[b] = (zeros >> b & 1) != 0 ? std::uint8_t{0} : static_cast<std::uint8_t>(random());
    }
    if (i % 4 == 0) {
      std::fill_n(some.raw, 10, std::uint8_t{0});
      some.raw[10] = some.raw[11] = 0xff;
    }
    ASSERT_TRUE(std::ranges::equal(gid(gid_text(some).data()).raw, some.raw)) << gid_text(some).data();
  }
}

// --- Ethernet ---

TEST(GidChoice, ConnectXTakesIpv4OfV2) {
  const auto choice = choose_gid(kEth, connectx(), {});
  ASSERT_OK(choice);
  EXPECT_EQ(choice->index, 3U);
  EXPECT_TRUE(std::ranges::equal(choice->gid.raw, gid("192.168.10.5").raw));
  EXPECT_EQ(choice->type, kV2);
  EXPECT_STREQ(choice->netdev.data(), "ens1f0np0");
  EXPECT_TRUE(choice->grh);
  EXPECT_STREQ(choice->reason.data(), "a routable address goes before a link-local address (GID 1)");
  EXPECT_STREQ(describe(*choice).data(),
               "GID 3 (192.168.10.5, RoCE v2, ens1f0np0): a routable address goes before a link-local address (GID 1)");
}

TEST(GidChoice, EachPortOfADualPortNicChoosesForItself) {
  EXPECT_EQ(chosen(kEth, connectx("ens1f0np0", "10.1.0.5", "fe80::1:1")), 3);
  EXPECT_EQ(chosen(kEth, connectx("ens1f1np1", "10.2.0.5", "fe80::1:2")), 3);
  // The other port's address is an error that says what this one has.
  const std::string text =
      failure(kEth, connectx("ens1f1np1", "10.2.0.5"), want_address("10.1.0.5"), Status::kNotFound);
  EXPECT_TRUE(contains(text, "no usable GID has 10.1.0.5; there are GID 3 10.2.0.5 (ens1f1np1), GID 1 fe80::")) << text;
  EXPECT_TRUE(contains(text, "give the interface that address")) << text;
}

TEST(GidChoice, TheAddressChoosesTheVlan) {
  const Table table = connectx_with_vlans();
  EXPECT_EQ(chosen(kEth, table), 3);
  EXPECT_EQ(chosen(kEth, table, want_address("10.0.100.5")), 7);
  EXPECT_EQ(chosen(kEth, table, want_address("2001:db8:200::5")), 11);
  const auto vlan = choose_gid(kEth, table, want_address("10.0.100.5"));
  ASSERT_OK(vlan);
  EXPECT_STREQ(vlan->netdev.data(), "eth0.100");
  EXPECT_STREQ(vlan->reason.data(), "the address asked for; RoCE v2 goes before RoCE v1 (GID 6)");
  // Three interfaces have this one.
  EXPECT_EQ(chosen(kEth, table, want_address("fe80::ac0:ebff:feda:1cfb")), 1);
  EXPECT_TRUE(contains(verdict(kEth, table, 7).why.data(), "a higher index; GID 3 has a lower index"));
}

TEST(GidChoice, TheAnyAddressAsksForNone) {
  for (const char* any : {"::", "0.0.0.0"}) {
    EXPECT_EQ(chosen(kEth, connectx(), want_address(any)), 3);
    EXPECT_FALSE(contains(reason(kEth, connectx(), want_address(any)), "asked for"));
  }
}

TEST(GidChoice, VersionGoesBeforeScope) {
  const Table table{entry(0, "10.0.0.5", kV1), entry(1, "fe80::1", kV2)};
  EXPECT_EQ(chosen(kEth, table), 1);
  EXPECT_EQ(reason(kEth, table), "RoCE v2 goes before RoCE v1 (GID 0); link-local reaches this Ethernet segment only");
}

TEST(GidChoice, AddressGoesBeforeVersion) {
  const Table table{entry(0, "10.0.0.5", kV1), entry(1, "10.0.0.6", kV2)};
  EXPECT_EQ(chosen(kEth, table, want_address("10.0.0.5")), 0);
  EXPECT_EQ(reason(kEth, table, want_address("10.0.0.5")),
            "the address asked for; the only usable GID with it; RoCE v1 reaches this Ethernet segment only");
}

TEST(GidChoice, KindsGoInOrder) {
  const Table table{entry(0, "::1"),     entry(1, "127.0.0.1"),     entry(2, "169.254.3.4"), entry(3, "fe80::1"),
                    entry(4, "fd93::1"), entry(5, "2001:db8::1"),   entry(6, "100.64.0.1"),  entry(7, "10.0.0.1"),
                    entry(8, "8.8.8.8"), entry(9, "2001:db8::dead")};
  // Private, shared and public addresses are routed alike; which one the peers know is asked for by address.
  std::vector<std::uint32_t> order;
  Table left = table;
  while (!left.empty()) {
    const int index = chosen(kEth, left);
    ASSERT_GE(index, 0);
    order.push_back(static_cast<std::uint32_t>(index));
    std::erase_if(left, [&](const GidEntry& each) { return each.index == order.back(); });
  }
  EXPECT_EQ(order, (std::vector<std::uint32_t>{6, 7, 8, 4, 5, 9, 2, 3, 0, 1}));
}

TEST(GidChoice, Ipv6Only) {
  const Table table{entry(0, "fe80::1", kV1), entry(1, "fe80::1", kV2), entry(2, "fd93::5", kV1),
                    entry(3, "fd93::5", kV2)};
  EXPECT_EQ(chosen(kEth, table), 3);
  // A family that the port does not have. The list leaves out v1, which says the same once more.
  EXPECT_EQ(failure(kEth, table, want_address("10.0.0.1"), Status::kNotFound),
            "no usable GID has 10.0.0.1; there are GID 3 fd93::5 (eth0), GID 1 fe80::1 (eth0); use one of these, or "
            "give the interface that address");
}

TEST(GidChoice, Ipv4GoesBeforeIpv6) {
  const Table table{entry(3, "2001:db8::5"), entry(7, "10.0.0.5")};
  EXPECT_EQ(chosen(kEth, table), 7);
  EXPECT_EQ(reason(kEth, table), "IPv4 goes before IPv6 (GID 3)");
  EXPECT_STREQ(verdict(kEth, table, 3).why.data(), "IPv6; GID 7 has IPv4");
  EXPECT_EQ(chosen(kEth, table, want_address("2001:db8::5")), 3);
}

TEST(GidChoice, LinkLocalOnlyIsTakenAndSaid) {
  const Table table{entry(0, "fe80::1", kV1), entry(1, "fe80::1", kV2)};
  EXPECT_EQ(chosen(kEth, table), 1);
  EXPECT_TRUE(contains(reason(kEth, table), "link-local reaches this Ethernet segment only"));
}

TEST(GidChoice, SoftRoce) {
  const Table table{entry(0, "fe80::5054:ff:fe12:3456", kV2, "ens3"), entry(1, "10.0.2.15", kV2, "ens3")};
  EXPECT_EQ(chosen(kEth, table), 1);
  // Over lo: it is all there is.
  EXPECT_EQ(chosen(kEth, {entry(0, "127.0.0.1", kV2, "lo"), entry(1, "::1", kV2, "lo")}), 0);
  EXPECT_TRUE(contains(reason(kEth, {entry(0, "127.0.0.1", kV2, "lo")}), "this host only"));
}

TEST(GidChoice, WithoutInterfaceIsNotTaken) {
  EXPECT_EQ(chosen(kEth, pod()), 7);
  EXPECT_EQ(verdict(kEth, pod(), 3).use, GidUse::kRefused);
  EXPECT_TRUE(contains(verdict(kEth, pod(), 3).why.data(), "no network interface"));
  const std::string text = failure(kEth, connectx(""), {}, Status::kNotFound);
  EXPECT_TRUE(contains(text, "none of the port's 4 GIDs has a network interface")) << text;
  EXPECT_TRUE(contains(text, "ip link set NAME up")) << text;
  EXPECT_TRUE(contains(text, "network namespace")) << text;
}

TEST(GidChoice, AnAddressOfAnUnusableGidIsNamed) {
  const std::string text = failure(kEth, pod(), want_address("192.168.10.5"), Status::kNotFound);
  EXPECT_TRUE(contains(text, "GID 2 has 192.168.10.5, but no network interface")) << text;
  EXPECT_TRUE(contains(text, "GID 7 10.152.0.12 (net1)")) << text;
}

TEST(GidChoice, AnEmptyTableSaysWhatToDo) {
  for (const Table& table : {Table{}, Table(16), Table{entry(0, "0.0.0.0")}}) {
    EXPECT_TRUE(contains(failure(kEth, table, {}, Status::kNotFound), "ip address add"));
    EXPECT_TRUE(contains(failure(kIb, table, {}, Status::kNotFound), "ibstat"));
    EXPECT_TRUE(contains(failure(kEth, table, want_index(0), Status::kNotFound), "no GID at index 0"));
    EXPECT_TRUE(judge_gids(kEth, table, {}).empty());
  }
}

TEST(GidChoice, TheTypeOfOldKernelsIsV1) {
  const Table table{entry(0, "10.0.0.5", GidType::kInfiniBand), entry(1, "10.0.0.5", kV2)};
  EXPECT_EQ(chosen(kEth, table), 1);
  const auto v1 = choose_gid(kEth, table, want_index(0));
  ASSERT_OK(v1);
  EXPECT_EQ(v1->type, kV1);
  EXPECT_EQ(verdict(kEth, table, 0).entry.type, kV1);
}

// --- an index asked for ---

TEST(GidChoice, AnIndexIsHonouredAndWarnedAbout) {
  EXPECT_EQ(reason(kEth, connectx(), want_index(3)),
            "the index asked for; a routable address goes before a link-local address (GID 1)");
  EXPECT_EQ(reason(kEth, connectx(), want_index(2)),
            "the index asked for; warning: RoCE v1; GID 3 has RoCE v2; RoCE v1 reaches this Ethernet segment only");
  EXPECT_EQ(reason(kEth, connectx(), want_index(1)),
            "the index asked for; warning: a link-local address; GID 3 has a routable address; "
            "link-local reaches this Ethernet segment only");
  EXPECT_EQ(reason(kEth, pod(), want_index(3)),
            "the index asked for; warning: no network interface: it is down, or in another network namespace");
  EXPECT_EQ(reason(kEth, connectx(""), want_index(3)), reason(kEth, pod(), want_index(3)));
  for (std::uint32_t index = 0; index < 4; ++index) {
    EXPECT_EQ(chosen(kEth, connectx(), want_index(index)), static_cast<int>(index));
  }
}

TEST(GidChoice, AnIndexGoesBeforeAnAddress) {
  GidWanted both = want_address("10.0.100.5");
  both.index = 3;
  EXPECT_EQ(reason(kEth, connectx_with_vlans(), both),
            "the index asked for; warning: not the address asked for, 10.0.100.5");
  both.index = 7;
  EXPECT_FALSE(contains(reason(kEth, connectx_with_vlans(), both), "warning"));
  both.address = gid("10.99.0.1");
  EXPECT_EQ(chosen(kEth, connectx_with_vlans(), both), 7);
  EXPECT_TRUE(contains(reason(kEth, connectx_with_vlans(), both), "warning: not the address asked for, 10.99.0.1"));
}

TEST(GidChoice, AnIndexThatIsNotThereListsWhatIs) {
  const std::string text = failure(kEth, connectx(), want_index(7), Status::kNotFound);
  EXPECT_TRUE(contains(text, "no GID at index 7; usable are GID 3 192.168.10.5 (ens1f0np0)")) << text;
  EXPECT_TRUE(contains(failure(kEth, connectx(""), want_index(7), Status::kNotFound), "no usable one"));
  Table zeroed = connectx();
  zeroed[3].gid = {};
  failure(kEth, zeroed, want_index(3), Status::kNotFound);
  // Nobody is taken then, and the table can be printed all the same.
  for (const GidVerdict& each : judge_gids(kEth, connectx(), want_index(7))) EXPECT_EQ(each.use, GidUse::kUsable);
  EXPECT_STREQ(verdict(kEth, connectx(), 3, want_index(7)).why.data(), "the best one, but index 7 was asked for");
}

TEST(GidChoice, AnIndexThatAnAddressVectorCannotHold) {
  // Soft-RoCE has 1024 entries; sgid_index is 8 bits, and 256 would become 0.
  const Table table{entry(256, "10.0.0.5"), entry(255, "fe80::1")};
  EXPECT_EQ(chosen(kEth, table), 255);
  EXPECT_TRUE(contains(verdict(kEth, table, 256).why.data(), "above 255"));
  failure(kEth, table, want_index(256), Status::kBadArgument);
  failure(kEth, table, want_index(~0U), Status::kBadArgument);
  EXPECT_TRUE(contains(failure(kEth, table, want_address("10.0.0.5"), Status::kNotFound), "GID 256 has 10.0.0.5, but"));
  EXPECT_TRUE(contains(failure(kEth, {table[0]}, {}, Status::kNotFound), "index above 255"));
}

// --- InfiniBand ---

TEST(GidChoice, InfiniBandTakesIndexZeroWithoutInterface) {
  const Table table{entry(0, "fe80::e41d:2d03:6f:1", GidType::kInfiniBand, "")};
  const auto choice = choose_gid(kIb, table, {});
  ASSERT_OK(choice);
  EXPECT_EQ(choice->index, 0U);
  EXPECT_EQ(choice->type, GidType::kInfiniBand);
  EXPECT_FALSE(choice->grh);
  EXPECT_STREQ(choice->reason.data(), "the only usable GID; default subnet prefix, routed by LID");
  EXPECT_STREQ(describe(*choice).data(),
               "GID 0 (fe80::e41d:2d03:6f:1, InfiniBand): the only usable GID; default subnet prefix, routed by LID");
}

TEST(GidChoice, InfiniBandWithAPrefixOfItsOwnAndAliases) {
  const Table table{entry(0, "fd12:3456:789a:1:e41d:2d03:6f:1", GidType::kInfiniBand, ""),
                    entry(1, "fd12:3456:789a:1:e41d:2d03:6f:2", GidType::kInfiniBand, ""),
                    entry(2, "fe80::e41d:2d03:6f:3", kV2, "ib0")};  // A type that cannot be, and is not looked at.
  EXPECT_EQ(reason(kIb, table),
            "a lower index goes before a higher index (GID 1); subnet prefix "
            "fd12:3456:789a:1::/64, routed by LID");
  EXPECT_EQ(chosen(kIb, {GidEntry{}, table[2], table[1]}), 1);
  EXPECT_EQ(verdict(kIb, table, 2).entry.type, GidType::kInfiniBand);
}

TEST(GidChoice, InfiniBandRoutesGloballyWhenAskedFor) {
  const Table table{entry(0, "fe80::1", GidType::kInfiniBand, ""), entry(1, "fd12::1", GidType::kInfiniBand, "")};
  for (const GidWanted& wanted : {want_index(0), want_address("fe80::1"), want_index(1), want_address("fd12::1")}) {
    const auto choice = choose_gid(kIb, table, wanted);
    ASSERT_OK(choice);
    EXPECT_TRUE(choice->grh);
    EXPECT_TRUE(contains(choice->reason.data(), "with a GRH"));
  }
  EXPECT_EQ(chosen(kIb, table, want_address("fd12::1")), 1);
  const std::string text = failure(kIb, table, want_address("fd12::2"), Status::kNotFound);
  EXPECT_EQ(text,
            "no usable GID has fd12::2; there are GID 0 fe80::1, GID 1 fd12::1; use one of these, or ask for no "
            "address");
}

TEST(GidChoice, AnIpoibAddressDoesNotDecide) {
  const Table table{entry(0, "fe80::1", GidType::kInfiniBand, "")};
  const auto choice = choose_gid(kIb, table, want_address("10.0.0.5"));
  ASSERT_OK(choice);
  EXPECT_EQ(choice->index, 0U);
  EXPECT_FALSE(choice->grh);
  EXPECT_TRUE(contains(choice->reason.data(), "10.0.0.5 is no GID, so it is ignored"));
}

TEST(GidChoice, AVirtualFunctionWithoutGuidHasNoGid) {
  EXPECT_TRUE(contains(failure(kIb, {entry(0, "fe80::", GidType::kInfiniBand, "")}, {}, Status::kNotFound), "no GUID"));
}

// --- tables that no host should have ---

TEST(GidChoice, HostileNamesAreBoundedAndPrintable) {
  GidEntry open = entry(0, "10.0.0.1");
  open.netdev.fill('x');
  const auto choice = choose_gid(kEth, std::span(&open, 1), {});
  ASSERT_OK(choice);
  EXPECT_EQ(std::string(choice->netdev.data()), std::string(15, 'x'));
  EXPECT_EQ(std::string(judge_gids(kEth, std::span(&open, 1), {})[0].entry.netdev.data()), std::string(15, 'x'));

  const Table escape{entry(0, "10.0.0.1", kV2, "\033[2J\n\xff{}%s")};
  const auto escaped = choose_gid(kEth, escape, {});
  ASSERT_OK(escaped);
  EXPECT_STREQ(escaped->netdev.data(), "\033[2J\n\xff{}%s");  // What if_nametoindex wants.
  EXPECT_TRUE(contains(describe(*escaped).data(), "RoCE v2, ?[2J??{}%s)")) << describe(*escaped).data();
  const std::string text = failure(kEth, escape, want_address("10.0.0.2"), Status::kNotFound);
  EXPECT_TRUE(contains(text, "(?[2J??{}%s)")) << text;

  GidEntry late = entry(0, "10.0.0.1", kV2, "");
  late.netdev[1] = 'x';  // Behind the end.
  EXPECT_EQ(chosen(kEth, {late}), -1);
}

TEST(GidChoice, DuplicatesAreTakenOnce) {
  const Table table{entry(4, "10.0.0.5"), entry(2, "10.0.0.5"), entry(2, "10.0.0.5"), entry(2, "10.0.0.4")};
  const auto choice = choose_gid(kEth, table, {});
  ASSERT_OK(choice);
  EXPECT_EQ(choice->index, 2U);
  EXPECT_STREQ(gid_text(choice->gid).data(), "10.0.0.4");
  const auto verdicts = judge_gids(kEth, table, want_address("10.0.0.5"));
  ASSERT_EQ(verdicts.size(), 4U);
  EXPECT_EQ(verdicts[0].use, GidUse::kTaken);
  EXPECT_STREQ(verdicts[1].why.data(), "the same as GID 2");
  EXPECT_EQ(verdicts[2].use, GidUse::kRefused);
  EXPECT_EQ(verdicts[3].entry.index, 4U);
}

TEST(GidChoice, LongTablesAreCountedWhereTheyCannotBeListed) {
  Table table;
  for (std::uint32_t i = 0; i < 300; ++i) {
    table.push_back(entry(i, "10.0." + std::to_string(i / 250) + "." + std::to_string(1 + i % 250),
                          i % 2 == 0 ? kV1 : kV2, "eth0." + std::to_string(i / 2)));
  }
  EXPECT_EQ(chosen(kEth, table), 1);
  EXPECT_EQ(chosen(kEth, table, want_address("10.0.0.200")), 199);
  EXPECT_EQ(judge_gids(kEth, table, {}).size(), 300U);
  // 128 v2 GIDs have an index up to 255.
  EXPECT_EQ(failure(kEth, table, want_address("10.9.9.9"), Status::kNotFound),
            "no usable GID has 10.9.9.9; there are GID 1 10.0.0.2 (eth0.0), GID 3 10.0.0.4 (eth0.1), GID 5 10.0.0.6 "
            "(eth0.2), GID 7 10.0.0.8 (eth0.3) and 124 more; use one of these, or give the interface that address");
}

// --- properties ---

/// Tables with few distinct values, so that ties, duplicates and faults are common.
Table random_table(std::mt19937_64& random) {
  static constexpr const char* kAddresses[] = {"::",          "fe80::",
                                               "fe80::1",     "fe80::2",
                                               "169.254.1.1", "127.0.0.1",
                                               "::1",         "10.0.0.1",
                                               "10.0.0.2",    "8.8.8.8",
                                               "2001:db8::1", "2001:db8::2",
                                               "fd00::1",     "2001:1111:2222:3333:4444:5555:6666:7777"};
  static constexpr const char* kNames[] = {"", "eth0", "eth0.100", "abcdefghijklmnop"};
  Table table(random() % 12);
  for (GidEntry& each : table) {
    const std::uint64_t bits = random();
    each = entry(static_cast<std::uint32_t>(bits % 8), kAddresses[(bits >> 8) % std::size(kAddresses)],
                 static_cast<GidType>((bits >> 16) % 3), kNames[(bits >> 24) % std::size(kNames)]);
    if ((bits >> 32) % 16 == 0) each.index = 4'294'967'290U + each.index % 4;
  }
  return table;
}

GidWanted random_wanted(std::mt19937_64& random, const Table& table) {
  GidWanted wanted;
  const std::uint64_t bits = random();
  if (bits % 4 == 0) wanted.index = static_cast<std::uint32_t>((bits >> 8) % 10);
  if (bits % 3 == 0) {
    wanted.address = table.empty() || (bits >> 16) % 4 == 0 ? gid("2001:9999:2222:3333:4444:5555:6666:7777")
                                                            : table[(bits >> 24) % table.size()].gid;
  }
  return wanted;
}

std::string outcome(LinkLayer layer, const Table& table, const GidWanted& wanted) {
  const auto choice = choose_gid(layer, table, wanted);
  return choice ? describe(*choice).data() + std::string(choice->grh ? " grh" : "") : choice.error().text();
}

std::string printed(const std::vector<GidVerdict>& verdicts) {
  std::string all;
  for (const GidVerdict& each : verdicts) {
    all += std::to_string(each.entry.index) + ' ' + gid_text(each.entry.gid).data() + ' ' + each.entry.netdev.data() +
           ' ' + std::to_string(static_cast<int>(kind_of(each.entry.gid))) + ' ' +
           std::to_string(static_cast<int>(each.use)) + ' ' + each.why.data() + '\n';
  }
  return all;
}

TEST(GidProperty, TheOrderOfTheTableDoesNotMatter) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    const Table table = random_table(random);
    const GidWanted wanted = random_wanted(random, table);
    const LinkLayer layer = i % 2 == 0 ? kEth : kIb;
    Table shuffled = table;
    std::ranges::shuffle(shuffled, random);
    ASSERT_EQ(outcome(layer, shuffled, wanted), outcome(layer, table, wanted));
    ASSERT_EQ(printed(judge_gids(layer, shuffled, wanted)), printed(judge_gids(layer, table, wanted)));
  }
}

/// Whether the rules of the header let `other` be passed over for `taken`. Written anew, without ranks.
bool passed_over_rightly(const GidEntry& taken, const GidEntry& other) {
  const auto version = [](const GidEntry& each) { return each.type == kV2 ? 2 : 1; };
  if (version(taken) != version(other)) return version(taken) > version(other);
  const auto reach = [](const GidEntry& each) {
    switch (kind_of(each.gid)) {
      case GidKind::kIpv4: return 4;
      case GidKind::kGlobal: return 3;
      case GidKind::kLinkLocal: return 2;
      default: return 1;
    }
  };
  if (reach(taken) != reach(other)) return reach(taken) > reach(other);
  return taken.index <= other.index;
}

TEST(GidProperty, NothingUsableIsBetterThanWhatIsTaken) {
  std::mt19937_64 random(2);
  int choices = 0;
  for (int i = 0; i < 20'000; ++i) {
    const Table table = random_table(random);
    GidWanted wanted = random_wanted(random, table);
    wanted.index.reset();
    const bool any = !wanted.address || std::ranges::all_of(wanted.address->raw, [](auto byte) { return byte == 0; });
    const auto usable = [&](const GidEntry& each) {
      return kind_of(each.gid) != GidKind::kUnset && each.netdev[0] != '\0' && each.index <= 255 &&
             (any || std::ranges::equal(each.gid.raw, wanted.address->raw));
    };
    const auto choice = choose_gid(kEth, table, wanted);
    ASSERT_EQ(choice.has_value(), std::ranges::any_of(table, usable));
    if (!choice) continue;
    ++choices;
    const GidEntry taken{choice->index, choice->gid, choice->type, choice->netdev};
    for (const GidEntry& each : table) ASSERT_TRUE(!usable(each) || passed_over_rightly(taken, each));
  }
  EXPECT_GT(choices, 5'000);  // The tables are not all unusable.
}

TEST(GidProperty, VerdictsAgreeWithTheChoiceAndTextsFit) {
  std::mt19937_64 random(3);
  const auto clean = [](std::string_view text) {
    return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
  };
  for (int i = 0; i < 20'000; ++i) {
    const Table table = random_table(random);
    const GidWanted wanted = random_wanted(random, table);
    const LinkLayer layer = i % 2 == 0 ? kEth : kIb;
    const auto choice = choose_gid(layer, table, wanted);
    int taken = 0;
    for (const GidVerdict& each : judge_gids(layer, table, wanted)) {
      const std::string_view why = each.why.data();
      ASSERT_TRUE(!why.empty() && why.size() < each.why.size() - 1 && clean(why)) << why;
      if (each.use != GidUse::kTaken) continue;
      ++taken;
      ASSERT_OK(choice);
      ASSERT_EQ(each.entry.index, choice->index);
      ASSERT_TRUE(std::ranges::equal(each.entry.gid.raw, choice->gid.raw));
      ASSERT_EQ(each.entry.netdev, choice->netdev);
      ASSERT_EQ(why, choice->reason.data());
      ASSERT_LT(std::string_view(describe(*choice).data()).size(), GidLine{}.size() - 1);
    }
    ASSERT_EQ(taken, choice ? 1 : 0);
    if (!choice) {
      const std::string_view text = choice.error().text();
      ASSERT_TRUE(!text.empty() && text.size() < Error::kTextBytes - 1 && clean(text)) << text;
    }
  }
}

}  // namespace
}  // namespace verbena::nic::verbs
