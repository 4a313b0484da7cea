// The description of this door, with a field for the token, which stays in the page's memory.
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null });
