#include "programs/environment.hpp"

#include "programs/files.hpp"
#include "programs/line.hpp"

#include <fmt/core.h>

#include <sys/utsname.h>
#include <unistd.h>

#include <iterator>
#include <vector>

namespace verbena::programs {
namespace {

std::string slurp(const char* path) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  const auto file = OpenFile::open(path, OpenFile::Follow::kYes);
  std::vector<std::byte> bytes(std::size_t{64} << 10);
  if (!file) return {};
  // The first part is enough: /proc/cpuinfo of a big machine is long, and repeats itself.
  const auto length = read_up_to(file->fd(), path, std::span(bytes).first(std::min(kMost, bytes.size())));
  if (!length) return {};
  return {reinterpret_cast<const char*>(bytes.data()), *length};
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

}  // namespace

std::string or_unknown(std::string_view text) { return text.empty() ? "unknown" : std::string(text); }

std::string environment_text(const Environment& e) {
  return fmt::format("on {} cores ({} allowed), {}, {}, pages {} B, transparent hugepages {}, hugepages free {}, {}",
                     e.cores_online, e.cpus_allowed, e.cpu_model, e.kernel, e.page_bytes, e.transparent_hugepages,
                     e.hugepages, e.build);
}

std::string environment_members(const Environment& e) {
  return fmt::format(R"("cores":{},"cpus_allowed":{},"cpu":{},"kernel":{},"page_bytes":{},)"
                     R"("transparent_hugepages":{},"hugepages":{},"build":{})",
                     e.cores_online, e.cpus_allowed, json_string(e.cpu_model), json_string(e.kernel), e.page_bytes,
                     json_string(e.transparent_hugepages), json_string(e.hugepages), json_string(e.build));
}

std::string_view proc_field(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    const std::size_t colon = line.find(':');
    if (colon != std::string_view::npos && trimmed(line.substr(0, colon)) == name)
      return trimmed(line.substr(colon + 1));
  }
  return {};
}

std::string_view bracketed(std::string_view text) {
  const std::size_t open = text.find('[');
  const std::size_t close = open == std::string_view::npos ? open : text.find(']', open);
  return close == std::string_view::npos ? "unknown" : text.substr(open + 1, close - open - 1);
}

Environment read_environment() {
  Environment environment;
  const std::string cpuinfo = slurp("/proc/cpuinfo");
  const std::string meminfo = slurp("/proc/meminfo");
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  environment.cores_online = online > 0 ? static_cast<unsigned>(online) : 0;
  environment.cpus_allowed = static_cast<unsigned>(allowed_cpus().size());
  environment.cpu_model = or_unknown(proc_field(cpuinfo, "model name"));
  utsname names{};
  environment.kernel =
      ::uname(&names) == 0 ? fmt::format("{} {} {}", names.sysname, names.release, names.machine) : "unknown";
  environment.transparent_hugepages = bracketed(slurp("/sys/kernel/mm/transparent_hugepage/enabled"));
  environment.hugepages =
      fmt::format("{} of {} of {}", or_unknown(proc_field(meminfo, "HugePages_Free")),
                  or_unknown(proc_field(meminfo, "HugePages_Total")), or_unknown(proc_field(meminfo, "Hugepagesize")));
  environment.page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
#ifdef NDEBUG
  environment.build = "release, " __VERSION__;
#else
  environment.build = "with assertions, " __VERSION__;
#endif
  return environment;
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (byte < 0x20 || byte > 0x7e) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", byte);
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
  return out;
}

std::string human_bytes(double bytes) {
  if (bytes < 1024) return fmt::format("{:.0f} B", bytes);
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (bytes /= 1024; bytes >= 1024 && unit + 1 < std::size(kUnits); bytes /= 1024) ++unit;
  return fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

std::string human_time(double ns) {
  if (ns < 1e3) return fmt::format("{:.0f} ns", ns);
  if (ns < 1e6) return fmt::format("{:.2f} us", ns / 1e3);
  if (ns < 1e9) return fmt::format("{:.2f} ms", ns / 1e6);
  return fmt::format("{:.2f} s", ns / 1e9);
}

}  // namespace verbena::programs
