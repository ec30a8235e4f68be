package httpapi

const eventOperation = "operation"
