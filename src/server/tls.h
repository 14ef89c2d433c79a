// What the server shows and asks for when it speaks TLS.
#pragma once

#include <utility>  // before asio: Debian's Boost 1.74 forgets it

#include <boost/asio/ssl/context.hpp>
#include <memory>

#include "server/config.h"

namespace eyrie::server {

// Null without a certificate. Error names the flag and the file that cannot be used.
std::unique_ptr<boost::asio::ssl::context> make_tls_context(const TlsConfig& tls);

}  // namespace eyrie::server
