#include "io/http/admin_server.hpp"

#include <httplib.h>

#include <map>
#include <stdexcept>
#include <thread>

namespace rankwise::io {

namespace {

std::pair<std::string, int> split(const std::string& address) {
  const auto colon = address.rfind(':');
  if (colon == std::string::npos)
    throw std::runtime_error("\"" + address + "\" is not host:port");
  try {
    return {address.substr(0, colon), std::stoi(address.substr(colon + 1))};
  } catch (const std::exception&) {
    throw std::runtime_error("\"" + address + "\" is not host:port");
  }
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address.starts_with("::ffff:127.");
}

} // namespace

struct admin_server::impl {
  httplib::Server server;
  std::map<std::string, httplib::Server::Handler> posts; ///< by path
  std::string served;                                    ///< "GET /a, POST /b", for whoever asks for something else
  std::string address;
  std::thread thread;

  void note(const char* method, const std::string& path) {
    served += (served.empty() ? "" : ", ") + std::string{method} + " " + path;
  }

  static httplib::Server::Handler adapt(http_handler handler) {
    return [handler = std::move(handler)](const httplib::Request& request, httplib::Response& response) {
      http_query query;
      for (const auto& [name, value] : request.params)
        query.parameters[name] = value;
      if (request.matches.size() > 1)
        query.path_rest = request.matches[1].str();
      query.peer = request.remote_addr;
      // A page of another site in an operator's browser, and whoever comes through a proxy, come from loopback too.
      query.from_loopback = is_loopback(request.remote_addr) && !request.has_header("Origin") &&
                            !request.has_header("X-Forwarded-For") && !request.has_header("Forwarded");
      const auto authorization = request.get_header_value("Authorization");
      if (constexpr std::string_view scheme = "Bearer "; authorization.starts_with(scheme))
        query.bearer_token = authorization.substr(scheme.size());
      http_answer answer;
      try {
        answer = handler(query);
      } catch (const std::exception& e) {
        answer = {500, "text/plain", std::string{e.what()} + "\n"};
      }
      response.status = answer.status;
      response.set_content(answer.body, answer.content_type.c_str());
    };
  }
};

admin_server::admin_server(const std::string& address) : impl_(std::make_unique<impl>()) {
  const auto [host, port] = split(address);
  // A connection has its thread until it is closed: enough of them that pages, scrapers and idle ones do not wait for
  // each other, and one request for each.
  impl_->server.new_task_queue = [] { return new httplib::ThreadPool(32); };
  impl_->server.set_keep_alive_max_count(1);
  impl_->server.set_read_timeout(2);
  impl_->server.set_write_timeout(5);
  // httplib's own would share the port with whoever else wants it.
  impl_->server.set_socket_options([](socket_t fd) {
    const int yes = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  // A POST without a body needs no length; httplib would wait for one until its time is over.
  impl_->server.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    const auto found =
        request.method == "POST" && !request.has_header("Content-Length") && !request.has_header("Transfer-Encoding")
            ? impl_->posts.find(request.path)
            : impl_->posts.end();
    if (found == impl_->posts.end())
      return httplib::Server::HandlerResponse::Unhandled;
    found->second(request, response);
    return httplib::Server::HandlerResponse::Handled;
  });
  impl_->server.set_error_handler([this](const httplib::Request& request, httplib::Response& response) {
    if (response.status == 404 && response.body.empty())
      response.set_content("no " + request.method + " " + request.path + "; there are " + impl_->served + "\n",
                           "text/plain");
  });
  impl_->server.set_payload_max_length(1 << 16);
  int bound = port;
  if (port == 0)
    bound = impl_->server.bind_to_any_port(host.c_str());
  else if (!impl_->server.bind_to_port(host.c_str(), port))
    bound = -1;
  if (bound <= 0)
    throw std::runtime_error("cannot bind the admin address " + address);
  impl_->address = host + ":" + std::to_string(bound);
}

admin_server::~admin_server() {
  stop();
}

void admin_server::get(const std::string& path, http_handler handler) {
  impl_->note("GET", path);
  impl_->server.Get(path.c_str(), impl::adapt(std::move(handler)));
}

void admin_server::post(const std::string& path, http_handler handler) {
  auto adapted = impl::adapt(std::move(handler));
  impl_->note("POST", path);
  impl_->posts[path] = adapted;
  impl_->server.Post(path.c_str(), std::move(adapted));
}

void admin_server::start() {
  impl_->thread = std::thread{[this] { impl_->server.listen_after_bind(); }};
}

void admin_server::stop() noexcept {
  if (!impl_->thread.joinable())
    return;
  impl_->server.stop();
  impl_->thread.join();
}

const std::string& admin_server::address() const noexcept {
  return impl_->address;
}

namespace {

std::string reason_of(httplib::Error error) {
  switch (error) {
  case httplib::Error::Connection:
    return "could not connect";
  case httplib::Error::Read:
    return "connected, but no whole answer came";
  default:
    return httplib::to_string(error);
  }
}

template <class Call>
http_answer ask(const std::string& address, int timeout_s, Call call) {
  try {
    const auto [host, port] = split(address);
    httplib::Client client{host, port};
    client.set_connection_timeout(timeout_s);
    client.set_read_timeout(timeout_s);
    client.set_write_timeout(timeout_s);
    const auto result = call(client);
    if (!result)
      return {0, "text/plain", reason_of(result.error())};
    return {result->status, result->get_header_value("Content-Type"), result->body};
  } catch (const std::exception& e) {
    return {0, "text/plain", e.what()};
  }
}

} // namespace

http_answer http_get(const std::string& address, const std::string& path, int timeout_s) {
  return ask(address, timeout_s, [&](httplib::Client& client) { return client.Get(path.c_str()); });
}

http_answer http_post(const std::string& address, const std::string& path, int timeout_s,
                      const std::string& bearer_token) {
  return ask(address, timeout_s, [&](httplib::Client& client) {
    httplib::Headers headers;
    if (!bearer_token.empty())
      headers.emplace("Authorization", "Bearer " + bearer_token);
    return client.Post(path.c_str(), headers, "", "text/plain");
  });
}

} // namespace rankwise::io
